"""GRPO with one response per prompt has an advantage of 0, whichever standard deviation it divides by.

Said by: write-ups on the group size. Some libraries instead define the advantage of a single response as its reward.

Tested: grpo.py's advantages for groups of one response, correct or incorrect, with the population's and the sample's
standard deviation.

Rule: reproduced if the advantage is 0 under both; else contradicted.
"""

import warnings

import grpo
from claims.court import axes, decide
from tools.plots import BLUE, ORANGE

import torch

KIND = "exact"
REWARDS = (0.0, 1.0)


def compute():
    result = {}
    for ddof, name in ((0, "population"), (1, "sample")):
        with warnings.catch_warnings(action="ignore"):  # torch warns that one sample has no std
            advantages = grpo.compute_advantages(torch.tensor(REWARDS)[:, None], grpo.Args(ddof=ddof))[:, 0]
        result[name] = [a if a == a else "undefined" for a in advantages.tolist()]
    return result


def verdict(result):
    return decide(all(a == 0 for advantages in result.values() for a in advantages))


def effect(result):
    parts = [f"A = {advantages[1]} with the {name} std" for name, advantages in result.items()]
    return "; ".join(parts) + "; grpo.py refuses groups of one"


def draw(result):
    panel = axes(
        "The advantage of a lone correct response is a convention",
        "",
        "advantage",
        ylim=(-0.1, 1.2),
    )
    panel.bar(0, 0, color=BLUE, width=0.6, label="grpo.py")
    panel.bar(2, 1, color=ORANGE, width=0.6, label="some other code")
    for x, text in ((0, "0"), (1, "0 / 0, undefined"), (2, "1")):
        panel.text(x, 0.05 if x < 2 else 1.03, text, ha="center")
    panel.set_xticks(range(3), ["population std\n(--ddof 0)", "sample std\n(--ddof 1)", "its reward"])
    panel.legend(loc="upper left")
    return panel.figure
