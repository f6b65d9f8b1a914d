"""With ε = 0.2 a token of probability 0.01 cannot rise above 0.012 in one rollout batch.

Said by: DAPO, 2503.14476, Sec. 3.1, to motivate clip-higher (for "two actions with probabilities ... 0.01 and 0.9" the
"upper bounds of the increased probabilities ... are 0.012 and 1.08"), and most write-ups on clipping.

Tested: two prompts with two answers each. The correct one has probability 0.01 in the first and 0.5 in the second, and
both prompts share one weight, added to its logit. 16 updates of plain gradient ascent on one batch of 100 responses to
each, of which 1 and 50 are correct, with grpo.py's advantages and loss; also with the first prompt alone.

Rule: reproduced if the ratio of the rare answer stays below 1.21 after all updates in both; else contradicted, as a
bound.
"""

import grpo
from claims.court import axes, coefficients, decide
from tools.plots import BLUE, ORANGE

import torch

KIND = "exact"
UPDATES, LR, G = 16, 0.15, 100


def ratios(right):
    """Ratio of the first prompt's correct answer after each update; `right` has the correct responses per prompt."""
    rewards = (torch.arange(G)[None] < torch.tensor(right)[:, None]).double()  # (P, G)
    advantages = grpo.compute_advantages(rewards, grpo.Args())  # (P, G)
    old_logit = rewards.mean(1, keepdim=True).logit()  # (P, 1)
    signs = 2 * rewards - 1  # (P, G)
    theta, path = 0.0, []
    for _ in range(UPDATES + 1):
        logp = torch.nn.functional.logsigmoid(signs * (old_logit + theta))  # (P, G)
        old_logp = torch.nn.functional.logsigmoid(signs * old_logit)
        path.append((logp - old_logp)[0, 0].exp().item())
        c = coefficients(grpo, logp.view(-1, 1), advantages.view(-1, 1), grpo.Args(), old_logp=old_logp.view(-1, 1))
        scores = signs * (1 - logp.exp())  # (P, G), ∇θ log π
        theta += LR * (c.view(signs.shape) * scores).mean(1).sum().item()
    return path


def compute():
    return {"alone": ratios([1]), "beside a prompt with p = 0.5": ratios([1, 50])}


def verdict(result):
    return decide(max(max(path) for path in result.values()) < 1.21)


def effect(result):
    alone, beside = (path[-1] for path in result.values())
    return f"ratio after {UPDATES} updates: {alone:.2f} alone, {beside:.2f} beside a prompt that shares the weight"


def draw(result):
    panel = axes(
        "The clip ends a token's own gradient; other prompts carry it on",
        "update of one rollout batch",
        "ratio of the answer with p = 0.01",
    )
    for (name, path), color in zip(result.items(), (BLUE, ORANGE), strict=True):
        panel.plot(path, marker=".", color=color, label=name)
    panel.axhline(1.2, color="black", linestyle=":", label="1 + ε")
    panel.legend()
    return panel.figure
