"""Longer responses raise the largest mismatch of a response, not the mean.

Said by: Yao et al. (2025), who compare lengths of 4,000 and 20,000 tokens ("longer generation sequences lead to a
larger maximum mismatch, while the mean mismatch is much less affected").

Tested: responses of the embedded model of at least 40 tokens, scored in fp32 and bf16: mean and largest |Δp| over their
first 5, 10, 20 and 40 tokens; and the largest of as many differences sampled from all positions at random.

Rule: reproduced if from 5 to 40 tokens the largest grows by at least 50 % and the mean by at most 25 %; else
contradicted.
"""

import grpo
from claims.court import axes, decide, embedded, scored
from tools.plots import BLUE, GRAY, ORANGE

import torch

KIND = "model"
LENGTHS = (5, 10, 20, 40)


def compute():
    args = grpo.Args()
    model, batch, _ = embedded(128, 8, args)
    learner, engine = (scored(model, batch, precision, args).exp() for precision in ("fp32", "bf16"))
    change = (learner - engine).abs()[batch.response_mask.sum(1) >= LENGTHS[-1], : LENGTHS[-1]]  # (N, 40)
    generator = torch.Generator().manual_seed(0)
    shuffled = change.flatten()[torch.randint(change.numel(), change.shape, generator=generator)]  # (N, 40)
    return {
        "responses": len(change),
        "mean": {n: change[:, :n].mean().item() for n in LENGTHS},
        "largest": {n: change[:, :n].amax(1).mean().item() for n in LENGTHS},
        "largest of random draws": {n: shuffled[:, :n].amax(1).mean().item() for n in LENGTHS},
    }


def growth(result, key):
    return result[key]["40"] / result[key]["5"] - 1


def verdict(result):
    return decide(growth(result, "largest") >= 0.5 and growth(result, "mean") <= 0.25)


def effect(result):
    rises = ", ".join(f"{key} {growth(result, key):+.0%}" for key in ("mean", "largest", "largest of random draws"))
    return f"|Δp| from 5 to 40 tokens: {rises}"


def draw(result):
    panel = axes(
        "The largest mismatch of a response grows with its length, the mean does not",
        "tokens",
        "|Δp|, bf16 against fp32",
        yscale="log",
    )
    looks = (("largest", ORANGE, "-"), ("largest of random draws", GRAY, ":"), ("mean", BLUE, "-"))
    for key, color, line in looks:
        panel.plot(LENGTHS, result[key].values(), marker="o", color=color, linestyle=line, label=key)
    panel.legend()
    return panel.figure
