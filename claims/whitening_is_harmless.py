"""Whitening the advantages of a batch changes their scale and not the direction of the gradient.

Said by: explanations of PPO, which say that it affects only variance and learning rate. REINFORCE++, 2501.03262,
Abstract, says less, and the result agrees: an "effectively unbiased estimate (whose bias vanishes as batch size
increases)".

Tested: a softmax over 4 answers with rewards 1, 0.6, 0 and -1, responses of one token, and a critic that knows the mean
reward; ppo.py's whiten over all batches of B = 2 to 64 responses. The angle between the expected gradient and the true
one.

Rule: reproduced if the angle is below 1° at every B; else contradicted. How it shrinks with B is shown beside it.
"""

import ppo
from claims.court import axes, coefficients, decide, tree
from tools.plots import BLUE

import torch
from scipy.stats import multinomial

KIND = "exact"
BATCHES = (2, 4, 8, 16, 32, 64)
LOGITS, REWARDS = (0.5, 0.0, 1.0, -1.0), (1.0, 0.6, 0.0, -1.0)


def compositions(B, V):
    """All ways (N, V) to distribute B responses over V answers."""
    bars = torch.combinations(torch.arange(B + V - 1), V - 1)  # (N, V - 1)
    ends = torch.full((len(bars), 1), B + V - 1)
    return torch.diff(torch.cat([torch.full_like(ends, -1), bars, ends], 1)) - 1


def compute():
    _, logp, scores = tree(torch.tensor([LOGITS], dtype=torch.float64), 1)  # (V, 1), (V, 1, V)
    p, reward = logp.exp()[:, 0], torch.tensor(REWARDS, dtype=torch.float64)
    advantage = reward - (p * reward).sum()  # (V,)
    true = ((p * advantage)[:, None] * scores[:, 0]).sum(0)  # (V,)
    result = {"angle": {}, "length": {}}
    for B in BATCHES:
        counts = compositions(B, len(p))  # (N, V), count of each answer in a batch
        chance = torch.from_numpy(multinomial.pmf(counts.numpy(), B, p.numpy()))  # (N,)
        batches = [torch.arange(len(p)).repeat_interleave(of_answer) for of_answer in counts]  # N times (B,)
        tokens = [advantage[answers][:, None] for answers in batches]  # N times (B, 1)
        whitened = torch.stack([ppo.whiten(A, torch.ones_like(A, dtype=torch.bool)) for A in tokens])  # (N, B, 1)
        answers = torch.stack(batches)  # (N, B)
        c = coefficients(ppo, logp[answers].view(-1, 1), whitened.view(-1, 1), ppo.Args()).view(answers.shape)
        gradient = ((chance[:, None] * c / B)[..., None] * scores[answers, 0]).sum((0, 1))  # (V,)
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
        xscale="log",
    )
    panel.plot(BATCHES, result["angle"].values(), marker="o", color=BLUE, label="ppo.py, whitened")
    panel.axhline(0, color="black", linewidth=0.8, label="not whitened")
    panel.set_xticks(BATCHES, BATCHES)
    panel.minorticks_off()
    panel.legend()
    return panel.figure
