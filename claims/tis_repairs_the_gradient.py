"""Truncated importance sampling per token repairs the gradient of an engine with other probabilities than the learner.

Said by: Yao et al. (2025), whose weight min(π_learner / π_sampler, C) is one per token ("in practice we find it usually
sufficient to use a classical technique, truncated importance sampling"), and many write-ups. Against it: "When Speed
Kills Stability" (2025), where a weight per token leaves a bias that only the weight of the whole response removes; and
2512.23075, Abstract, of PPO's clip ("a sequence-level quantity that cannot be controlled by token-independent
methods"), which masks whole responses.

Tested: a softmax policy over 4 tokens and 4 positions, with 256 responses, a random quarter of them correct. The
engine's logits are the learner's plus noise (standard deviation 0.3), in 20 draws. The expected gradient is summed over
all responses, with the loss and the weight of grpo.py; for a whole response the same weight function gets the sums of
the log-probs. Bias: ‖E ĝ - ∇J‖ / ‖∇J‖.

Rule: the fraction of the bias that the weight per token removes, with a 95 % interval over the draws. Reproduced if the
fraction is at least a half, contradicted if the interval excludes a half.
"""

import grpo
from claims.court import CONTRADICTED, axes, coefficients, judge, tree
from tools.plots import BLUE, ORANGE
from tools.stats import interval

import torch

KIND = "exact"
V, T, DRAWS = 4, 4, 20
NOISES = (0.1, 0.3, 0.5, 1.0)
OFF = 1e6  # a cap that is never reached
ARMS = {  # cap, and whether the weight is per response
    "no weight": (0.0, False),
    "token, no cap": (OFF, False),
    "token, C = 2": (2.0, False),
    "response, C = 2": (2.0, True),
    "response, no cap": (OFF, True),
}


def compute():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((V**T - 1) // (V - 1), V, dtype=torch.float64, generator=generator)
    _, logp, scores = tree(logits, T)  # (N, T), (N, T, D)
    chance = logp.sum(1).exp()  # (N,)
    reward = torch.zeros(len(chance), dtype=torch.float64)
    reward[torch.randperm(len(chance), generator=generator)[: len(chance) // 4]] = 1
    advantages = (reward - (chance * reward).sum())[:, None]  # (N, 1)
    true = (chance[:, None] * advantages * scores.sum(1)).sum(0)  # (D,)
    bias = {noise: {arm: [] for arm in ARMS} for noise in NOISES}
    for _ in range(DRAWS):
        direction = torch.randn(logits.shape, dtype=torch.float64, generator=generator)
        for noise in NOISES:
            rollout_logp = tree(logits + noise * direction, T)[1]  # (N, T)
            sampled = rollout_logp.sum(1).exp()  # (N,)
            for arm, (cap, whole) in ARMS.items():
                args = grpo.Args(tis_cap=0.0 if whole else cap)
                c = coefficients(grpo, logp, advantages, args, rollout_logp=rollout_logp)  # (N, T)
                if whole:
                    old, rollout = logp.sum(1, keepdim=True), rollout_logp.sum(1, keepdim=True)
                    c = c * grpo.tis_weight(old, rollout, grpo.Args(tis_cap=cap))
                gradients = (c[..., None] * scores).sum(1)  # (N, D)
                mean = (sampled[:, None] * gradients).sum(0)  # (D,)
                bias[noise][arm].append(((mean - true).norm() / true.norm()).item())
    return {
        "bias": {noise: {arm: sum(of_draws) / DRAWS for arm, of_draws in bias[noise].items()} for noise in NOISES},
        "removed": {
            arm: interval([1 - b / none for b, none in zip(bias[0.3][arm], bias[0.3]["no weight"], strict=True)])
            for arm in ARMS
        },
    }


def verdict(result):
    fraction, half = result["removed"]["token, C = 2"]
    return CONTRADICTED if fraction + half < 0.5 else judge(fraction, half, smallest=0.5)


def effect(result):
    (token, half), (whole, whole_half) = (result["removed"][f"{unit}, C = 2"] for unit in ("token", "response"))
    removed = f"{token:.0%} ± {half:.0%} by weights of tokens, {whole:.0%} ± {whole_half:.0%} by weights of responses"
    return f"fraction of the bias removed with C = 2: {removed}"


def draw(result):
    panel = axes(
        "A weight per token leaves most of the bias, a weight per response little",
        "noise on the engine's logits (standard deviation)",
        "bias of the expected gradient, relative",
    )
    colors = ("black", ORANGE, ORANGE, BLUE, BLUE)
    for (arm, (cap, _)), color in zip(ARMS.items(), colors, strict=True):
        biases = [result["bias"][str(noise)][arm] for noise in NOISES]
        panel.plot(NOISES, biases, marker="o", color=color, linestyle=":" if cap == OFF else "-", label=arm)
    panel.legend()
    return panel.figure
