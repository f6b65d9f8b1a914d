"""Whitening the advantages of a batch changes their scale and not the direction of the gradient.

Said by: write-ups on PPO, which call it a matter of variance and learning rate.

Tested: a softmax over 5 answers with rewards 1, 0.6, 0, 0 and -1, responses of one token, and a critic that knows the
mean reward; ppo.py's whiten over batches of B = 2 to 6 responses, all of which are enumerated. The angle between the
expected gradient and the true one.

Rule: reproduced if the angle stays below 1° at every B; else refuted.
"""

import ppo
from claims.court import axes, coefficients, decide, tree
from common.plots import BLUE

import torch

KIND = "exact"
BATCHES = (2, 3, 4, 5, 6)
LOGITS, REWARDS = (0.5, 0.0, 1.0, -0.5, -1.0), (1.0, 0.6, 0.0, 0.0, -1.0)


def compute():
    _, logp, scores = tree(torch.tensor([LOGITS], dtype=torch.float64), 1)  # (V, 1), (V, 1, V)
    p, reward = logp.exp()[:, 0], torch.tensor(REWARDS, dtype=torch.float64)
    advantage = reward - (p * reward).sum()  # (V,)
    true = ((p * advantage)[:, None] * scores[:, 0]).sum(0)  # (V,)
    result = {"angle": {}, "length": {}}
    for B in BATCHES:
        batches = torch.cartesian_prod(*[torch.arange(len(p))] * B)  # (N, B)
        tokens = advantage[batches][..., None]  # (N, B, 1)
        whitened = torch.stack([ppo.whiten(A, torch.ones_like(A, dtype=torch.bool)) for A in tokens])  # (N, B, 1)
        c = coefficients(ppo, logp[batches].view(-1, 1), whitened.view(-1, 1), ppo.Args()).view(batches.shape)
        gradient = (p[batches].prod(1)[:, None] * (c[..., None] * scores[batches, 0]).mean(1)).sum(0)  # (V,)
        cosine = torch.cosine_similarity(gradient, true, dim=0)
        result["angle"][B] = cosine.clamp(max=1).arccos().rad2deg().item()
        result["length"][B] = (gradient.norm() / true.norm()).item()
    return result


def verdict(result):
    return decide(max(result["angle"].values()) < 1)


def effect(result):
    return "angle to the true gradient: " + ", ".join(f"{angle:.1f}° (B = {B})" for B, angle in result["angle"].items())


def draw(result):
    panel = axes(
        "Whitening turns the expected gradient, less in larger batches",
        "responses in the batch",
        "angle to the true gradient, degrees",
    )
    panel.plot(BATCHES, result["angle"].values(), marker="o", color=BLUE, label="ppo.py, whitened")
    panel.axhline(0, color="black", linewidth=0.8, label="not whitened")
    panel.set_xticks(BATCHES, BATCHES)
    panel.legend()
    return panel.figure
