"""REINFORCE++ normalizes advantages over the batch, so responses have a mean advantage of 0.

Said by: REINFORCE++, 2501.03262, Eq. 5, which subtracts the batch's mean, and Abstract: "By normalizing advantages
across the entire global batch rather than small, prompt-specific groups". The loss (Eq. 1) averages over each response
first.

Tested: methods/reinforce_pp.py's advantages on a batch of 8 responses, 4 of them correct; the correct ones have 10
tokens, the incorrect ones 10 to 80. Means over tokens, and over responses with the script's own weights.

Rule: reproduced if the mean over responses, which the loss takes, stays within 0.01 of 0; else contradicted.
"""

from claims.court import axes, decide
from methods import reinforce_pp
from tools.plots import BLUE, ORANGE

import torch

KIND = "exact"
RIGHT_LENGTH, WRONG_LENGTHS = 10, (10, 20, 40, 80)


def means(wrong_length):
    """Mean advantage over tokens and over responses."""
    rewards = torch.tensor([[1.0] * 4 + [0.0] * 4], dtype=torch.float64)  # (1, B)
    lengths = torch.where(rewards[0] > 0, RIGHT_LENGTH, wrong_length)[:, None]  # (B, 1)
    mask = torch.arange(max(RIGHT_LENGTH, wrong_length)) < lengths  # (B, T)
    kl = torch.zeros(mask.shape, dtype=torch.float64)  # (B, T)
    advantages = reinforce_pp.compute_advantages(rewards, kl, reinforce_pp.Args())  # (B, T)
    advantages = reinforce_pp.normalize(advantages, mask)  # (B, T)
    weights = reinforce_pp.token_weights(mask)  # (B, T)
    return advantages[mask].mean().item(), (weights * advantages).sum().item()


def compute():
    return {wrong: dict(zip(("tokens", "responses"), means(wrong), strict=True)) for wrong in WRONG_LENGTHS}


def verdict(result):
    return decide(max(abs(of_length["responses"]) for of_length in result.values()) <= 0.01)


def effect(result):
    parts = ", ".join(f"{x['responses']:+.2f} (incorrect ones {n} tokens)" for n, x in result.items())
    return f"mean over tokens 0, over responses: {parts}"


def draw(result):
    panel = axes(
        "Where incorrect responses are longer, the mean response is pushed up",
        "tokens of an incorrect response (correct ones: 10)",
        "mean advantage",
    )
    for key, color in (("responses", ORANGE), ("tokens", BLUE)):
        panel.plot(WRONG_LENGTHS, [x[key] for x in result.values()], marker="o", color=color, label=f"over {key}")
    panel.legend()
    return panel.figure
