"""RLOO's leave-one-out baseline with GRPO's standard deviation is a method of its own.

Said by: write-ups that propose the combination. We know of no paper on it.

Tested: (R_i - mean of the others) / std of the group, from rloo.py's advantages, against grpo.py's, for every group of
2 to 64 responses with rewards of 0 and 1 that is neither all correct nor all incorrect.

Rule: contradicted if the two are one another's multiple by a constant that depends on G alone, to 1e-4; else
reproduced.
"""

import grpo
import rloo
from claims.court import axes, decide, outcomes
from tools.plots import BLUE

import torch

KIND = "exact"
GROUPS = (2, 4, 8, 16, 64)


def factors(G):
    """The combination divided by GRPO's advantage, for every mixed group and response."""
    rewards = outcomes(G)[1:-1]  # (G - 1, G): 1 to G - 1 correct
    combined = rloo.compute_advantages(rewards) / rewards.std(1, keepdim=True)
    return combined / grpo.compute_advantages(rewards, grpo.Args())  # (G - 1, G)


def compute():
    ranges = {G: (factors(G).min().item(), factors(G).max().item()) for G in GROUPS}
    return {
        "smallest factor": {G: low for G, (low, _) in ranges.items()},
        "largest": {G: h for G, (_, h) in ranges.items()},
    }


def verdict(result):
    spread = [
        high - low for low, high in zip(result["smallest factor"].values(), result["largest"].values(), strict=True)
    ]
    return decide(max(spread) > 1e-4)


def effect(result):
    return f"GRPO's advantage times G / (G - 1), the same for every response: {result['largest']['8']:.4f} at G = 8"


def draw(result):
    panel = axes(
        "Leave-one-out over the std is GRPO times a constant, in every group",
        "responses per group, G",
        "combination / GRPO's advantage",
        xscale="log",
    )
    low, high = result["smallest factor"], result["largest"]
    panel.vlines([int(G) for G in low], low.values(), high.values(), color=BLUE)
    panel.plot([int(G) for G in low], high.values(), "o", color=BLUE, label="range over all groups and responses")
    G = torch.linspace(2, 64, 200)
    panel.plot(G, G / (G - 1), color="black", linestyle=":", label="G / (G - 1)")
    panel.set_xticks(GROUPS, GROUPS)
    panel.minorticks_off()
    panel.legend()
    return panel.figure
