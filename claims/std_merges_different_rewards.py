"""Where several rewards are added up, GRPO's normalization gives groups with different rewards the same advantages.

Said by: GDPO, 2601.05242, Abstract ("directly applying GRPO to normalize distinct rollout reward combinations causes
them to collapse into identical advantage values"), which therefore normalizes each reward separately.

Tested: two responses to a prompt and the sum of two binary rewards, for example for correctness and brevity; grpo.py's
advantages for all 16 outcomes, against the sum of its advantages for each reward.

Rule: reproduced if normalizing the sum tells fewer groups apart than normalizing each reward; else contradicted.
"""

import itertools

import grpo
from claims.court import axes, decide
from tools.plots import BLUE, ORANGE

import torch

KIND = "exact"


def advantages(rewards):
    return grpo.compute_advantages(torch.tensor([rewards], dtype=torch.float64), grpo.Args())[0]


def compute():
    pairs = list(itertools.product((0, 1), repeat=2))  # one reward for the two responses
    of_sum, of_each = [], []
    for right, short in itertools.product(pairs, pairs):
        of_sum.append(advantages([a + b for a, b in zip(right, short, strict=True)])[0].item())
        of_each.append((advantages(right) + advantages(short))[0].item())
    return {"of the sum": of_sum, "of each reward": of_each}


def distinct(values):
    return len({round(value, 3) for value in values})


def verdict(result):
    return decide(distinct(result["of the sum"]) < distinct(result["of each reward"]))


def effect(result):
    of_sum, of_each = distinct(result["of the sum"]), distinct(result["of each reward"])
    return f"of 16 outcomes, {of_sum} different advantages when the sum is normalized, {of_each} when each reward is"


def draw(result):
    panel = axes(
        "Normalizing the sum: better by one reward or by two is the same",
        "outcomes of two binary rewards for two responses, sorted",
        "advantage of the first response",
    )
    for (name, values), color, size in zip(result.items(), (ORANGE, BLUE), (10, 5), strict=True):
        panel.plot(sorted(values), "o", color=color, markersize=size, label=f"normalization {name}")
    panel.legend()
    return panel.figure
