"""A baseline leaves the expected gradient as it is and usually lowers its variance.

Said by: Weaver and Tao, "The Optimal Reward Baseline for Gradient-Based Reinforcement Learning" (2001), abstract: a
baseline "affects variance without introducing further bias"; the first part also by Williams (1992).

Tested: a softmax over 8 answers, three of them correct, in 200 draws of the logits (standard deviation 2), with
reinforce.py's advantages for a given baseline b. Expected gradient and variance by enumeration, at b = 0, at the mean
reward, and at the best b, E[R ‖∇log π‖²] / E[‖∇log π‖²].

Rule: reproduced if the expected gradient differs by less than 1e-9, and the mean reward has less variance than no
baseline in more than half of the draws. Else contradicted.
"""

import reinforce
from claims.court import axes, coefficients, decide, tree
from tools.plots import BLUE, ORANGE

import torch

KIND = "exact"
V, DRAWS = 8, 200


def estimate(logits, reward, baseline):
    """Expected gradient (V,) of one response, and its variance."""
    _, logp, scores = tree(logits[None], 1)  # (V, 1), (V, 1, V)
    advantages = reinforce.compute_advantages(reward[:, None], baseline, reinforce.Args(baseline="ema"))  # (V, 1)
    gradients = coefficients(reinforce, logp, advantages, reinforce.Args()) * scores[:, 0]  # (V, V)
    p = logp.exp()  # (V, 1)
    mean = (p * gradients).sum(0)
    return mean, ((p * gradients**2).sum() - mean.pow(2).sum()).item()


def compute():
    generator = torch.Generator().manual_seed(0)
    reward = torch.tensor([1.0] * 3 + [0.0] * (V - 3), dtype=torch.float64)
    shift, of_mean, of_none, mean_rewards, best_ones = 0.0, [], [], [], []
    for _ in range(DRAWS):
        logits = 2 * torch.randn(V, dtype=torch.float64, generator=generator)
        _, logp, scores = tree(logits[None], 1)
        weight = logp[:, 0].exp() * scores.pow(2).sum((1, 2))  # (V,) π ‖∇log π‖²
        mean_reward, best = (logp[:, 0].exp() * reward).sum().item(), ((weight * reward).sum() / weight.sum()).item()
        (plain, without), (shifted, with_mean), (_, least) = (
            estimate(logits, reward, b) for b in (0.0, mean_reward, best)
        )
        shift = max(shift, (shifted - plain).abs().max().item())
        of_none.append(without / least)
        of_mean.append(with_mean / least)
        mean_rewards.append(mean_reward)
        best_ones.append(best)
    return {
        "largest change of the expected gradient": shift,
        "variance with the mean over the best": of_mean,
        "variance without over the best": of_none,
        "mean reward": mean_rewards,
        "best baseline": best_ones,
    }


def share_lower(result):
    """Fraction of the draws in which the mean reward has less variance than no baseline."""
    pairs = zip(result["variance with the mean over the best"], result["variance without over the best"], strict=True)
    return sum(mean < none for mean, none in pairs) / DRAWS


def verdict(result):
    return decide(result["largest change of the expected gradient"] < 1e-9 and share_lower(result) > 0.5)


def effect(result):
    return f"expected gradient unchanged; the mean reward lowers the variance in {share_lower(result):.0%} of the draws"


def draw(result):
    panel = axes(
        "The mean reward as baseline: mostly less variance, not always",
        "mean reward of the policy",
        "variance with the mean reward / without",
        yscale="log",
        xlim=(0, 1),
    )
    pairs = zip(result["variance with the mean over the best"], result["variance without over the best"], strict=True)
    panel.plot(
        result["mean reward"], [mean / none for mean, none in pairs], ".", color=BLUE, label="a draw of the policy"
    )
    panel.axhline(1, color=ORANGE, label="no baseline")
    panel.legend()
    return panel.figure
