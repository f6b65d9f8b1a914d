"""The norm of a token's gradient is in proportion to 1 - p, so it is largest for tokens of low probability.

Said by: "Do Not Let Low-Probability Tokens Over-Dominate in RL for LLMs", 2505.12929, which bounds the norm of a
token's gradient by a multiple of 1 - p, and therefore reweighs rare tokens. "In proportion" is how others read the
bound.

Tested: ‖∇_θ log p‖ over all weights of the embedded model, of up to 200 sampled tokens in each range of probability,
with one seed.

Rule: reproduced if the mean norm of tokens below 0.05 is at least 10 times that of tokens above 0.99, and the mean norm
over the mean of 1 - p differs by at most a factor of 2 between the ranges below 0.9; else contradicted.
"""

import itertools

import grpo
from claims.court import axes, decide, embedded
from common.logprobs import batch_logps, token_logps
from tools.plots import BLUE, ORANGE

import torch

KIND = "model"
EDGES, TOKENS = (0.0, 0.05, 0.2, 0.5, 0.9, 0.99, 1.0), 200
BINS = tuple(f"{low:g} to {high:g}" for low, high in itertools.pairwise(EDGES))
UNSURE = BINS[:4]  # p < 0.9


def compute():
    args = grpo.Args()
    model, batch, _ = embedded(64, 8, args)
    p, generator = batch_logps(model, batch, args)[0].exp(), torch.Generator().manual_seed(0)
    result = {}
    for name, (low, high) in zip(BINS, itertools.pairwise(EDGES), strict=True):
        tokens = ((p > low) & (p <= high) & batch.response_mask).nonzero()  # (N, 2)
        norms, rest = [], []
        for row, t in tokens[torch.randperm(len(tokens), generator=generator)[:TOKENS]].tolist():
            logp = token_logps(model, batch, torch.tensor([row]), args)  # (1, T)
            gradients = torch.autograd.grad(logp[0, t], list(model.parameters()))
            norms.append(sum(g.pow(2).sum().item() for g in gradients) ** 0.5)
            rest.append(1 - p[row, t].item())
        result[name] = {"norm": sum(norms) / len(norms), "norm / (1 - p)": sum(norms) / sum(rest), "tokens": len(norms)}
    return result


def verdict(result):
    ratios = [result[name]["norm / (1 - p)"] for name in UNSURE]
    return decide(result[BINS[0]]["norm"] >= 10 * result[BINS[-1]]["norm"] and max(ratios) <= 2 * min(ratios))


def effect(result):
    ends = f"mean norm {result[BINS[0]]['norm']:.0f} (p < 0.05), {result[BINS[-1]]['norm']:.2g} (p > 0.99)"
    ratios = [result[name]["norm / (1 - p)"] for name in UNSURE]
    apart = f"norm / (1 - p) from {min(ratios):.0f} to {max(ratios):.0f} for p < 0.9"
    return f"{ends}; {apart}, {max(ratios) / min(ratios):.1f} times (in proportion: at most 2)"


def draw(result):
    panel = axes(
        "The rarer a token, the larger its gradient, not quite as 1 - p",
        "probability of the token",
        "norm of ∇log p over all weights",
    )
    for key, color in (("norm", BLUE), ("norm / (1 - p)", ORANGE)):
        panel.plot(BINS, [of_bin[key] for of_bin in result.values()], marker="o", color=color, label=f"mean {key}")
    panel.set_ylim(0)
    panel.legend()
    return panel.figure
