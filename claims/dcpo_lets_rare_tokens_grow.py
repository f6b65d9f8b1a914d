"""DCPO's clip leaves unlikely tokens far more room to grow than a fixed one, and likely tokens no more.

Said by: DCPO, 2509.02333, Sec. 1 of version 2 ("tokens with lower prior probabilities are granted wider clipping
bounds, allowing more space for token-level exploration"), with ε_low = 0.16, ε_high = 0.2 and no ratio beyond 10.

Tested: for tokens of probability q = 0.001 to 0.99 under the old policy, the smallest ratio with a gradient for
advantage -1 and the largest for advantage 1, by bisection: methods/dcpo.py and grpo.py.

Rule: reproduced if a token of q = 0.01 may rise at least three times as far with DCPO as with GRPO (r - 1), and one of
q = 0.9 no farther; else contradicted.
"""

import grpo
from claims.court import axes, coefficients, decide
from methods import dcpo
from tools.plots import BLUE, ORANGE

import torch

KIND = "exact"
CHANCES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.9, 0.99)


def bounds(script, sign):
    """The ratio (N,) at which each token's gradient becomes 0: the largest for advantage 1, the smallest for -1."""
    old, args = torch.tensor(CHANCES, dtype=torch.float64).log()[:, None], script.Args()  # (N, 1)
    inside, outside = torch.ones_like(old), torch.full_like(old, 100.0 if sign > 0 else 0.0)
    for _ in range(60):
        middle = (inside + outside) / 2
        logp = old + middle.clamp(min=1e-12).log()
        free = coefficients(script, logp, torch.full_like(old, sign), args, old_logp=old) != 0
        inside, outside = torch.where(free, middle, inside), torch.where(free, outside, middle)
    return inside[:, 0].tolist()


def compute():
    return {
        name: {"largest": bounds(script, 1), "smallest": bounds(script, -1)}
        for name, script in {"dcpo": dcpo, "grpo": grpo}.items()
    }


def rise(result, script, q):
    return result[script]["largest"][CHANCES.index(q)] - 1


def verdict(result):
    rare, likely = ([rise(result, script, q) for script in ("dcpo", "grpo")] for q in (0.01, 0.9))
    return decide(rare[0] >= 3 * rare[1] and likely[0] <= likely[1])


def effect(result):
    ratios = ", ".join(f"{1 + rise(result, 'dcpo', q):.2f} (q = {q:g})" for q in (0.001, 0.01, 0.1, 0.9))
    return f"largest ratio with a gradient: {ratios}; grpo {1 + rise(result, 'grpo', 0.01):.2f}"


def draw(result):
    panel = axes(
        "DCPO's bounds open for unlikely tokens, and close for likely ones",
        "probability q of the token under the old policy",
        "ratios with a gradient",
        xscale="log",
        yscale="symlog",
    )
    for name, color in (("dcpo", ORANGE), ("grpo", BLUE)):
        panel.plot(CHANCES, result[name]["largest"], color=color, marker=".", label=f"{name}: largest, A = 1")
        panel.plot(CHANCES, result[name]["smallest"], color=color, marker=".", linestyle=":", label="smallest, A = -1")
    panel.legend(fontsize="small")
    return panel.figure
