"""Dividing by the standard deviation of the batch instead of the group's removes the bias by difficulty.

Said by: Lite PPO, 2508.08221, Sec. 4.1 (the std of the group is "causing the model to overemphasize tasks of extreme
difficulty"; "the standard deviation at the global (batch) level enables more robust reward shaping"), and REINFORCE++,
2501.03262, which also divides by the std of the batch.

Tested: a batch of three prompts with success rates 0.02, 0.5 and 0.98, and 16 responses to each; the expected gradient
of each prompt is w ∇p. We compute w over all outcomes of the batch, with the advantages of methods/lite_ppo.py
(group mean, std of all rewards) and of grpo.py.

Rule: reproduced if the largest w is at most 1.1 times the smallest with the batch's std; else contradicted.
"""

import itertools

import grpo
from claims.court import axes, decide, outcomes
from methods import lite_ppo
from tools.plots import BLUE, GREEN
from tools.scripts import call

import torch
from scipy.stats import binom

KIND = "exact"
CHANCES, G = (0.02, 0.5, 0.98), 16
SCRIPTS = {
    "std of the group": grpo,
    "std of the batch": lite_ppo,
}


def compute():
    p = torch.tensor(CHANCES, dtype=torch.float64)[:, None]  # (P, 1)
    of_count = outcomes(G)  # (G + 1, G)
    weights = {name: torch.zeros(len(CHANCES), dtype=torch.float64) for name in SCRIPTS}
    for counts in itertools.product(range(G + 1), repeat=len(CHANCES)):
        rewards = of_count[list(counts)]  # (P, G)
        chance = binom.pmf(counts, G, CHANCES).prod()
        scores = torch.where(rewards > 0, 1 / p, -1 / (1 - p))  # (P, G), in units of ∇p
        for name, script in SCRIPTS.items():
            advantages = call(script.compute_advantages, rewards=rewards, args=script.Args())  # (P, G)
            weights[name] += chance * (advantages * scores).mean(1)
    return {name: w.tolist() for name, w in weights.items()}


def spread(result, name):
    return max(result[name]) / min(result[name])


def verdict(result):
    return decide(spread(result, "std of the batch") <= 1.1)


def effect(result):
    return "largest / smallest w: " + ", ".join(f"{spread(result, name):.2f} ({name})" for name in SCRIPTS)


def draw(result):
    panel = axes(
        "Weight of a prompt by its difficulty, in a batch of three prompts",
        "chance p that a response is correct",
        "weight of ∇p, relative to p = 1/2",
    )
    for shift, (name, color) in zip((-0.2, 0.2), zip(result, (BLUE, GREEN), strict=True), strict=True):
        relative = [w / result[name][CHANCES.index(0.5)] for w in result[name]]
        panel.bar([x + shift for x in range(len(CHANCES))], relative, 0.4, color=color, label=name)
    panel.set_xticks(range(len(CHANCES)), CHANCES)
    panel.legend(loc="upper center")
    return panel.figure
