"""MaxRL with N responses per prompt follows the gradient of log p, cut off after N - 1 terms.

Said by: MaxRL, 2602.02710, Abstract (objectives that "converge to maximum likelihood optimization in the
infinite-compute limit"): log p = -Σ_k (1 - p)^k / k, whose first T terms weight ∇p by (1 - (1 - p)^T) / p. T = N holds
for the form without a baseline, T = N - 1 for Algorithm 1, which subtracts the mean (App. D, Theorem 5, in v3).

Tested: the expected weight of ∇p over all groups of N = 2 to 32 with maxrl.py's advantages, for p from 0.01 to 0.99.

Rule: reproduced if the weight differs from the formula with T = N - 1 by less than 1e-5 of it; else contradicted.
"""

import maxrl
from claims.court import axes, decide, prompt_weight
from tools.plots import BLUE, GREEN, ORANGE, RED

KIND = "exact"
SIZES, CHANCES = (2, 4, 8, 32), (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99)


def formula(p, T):
    return (1 - (1 - p) ** T) / p


def compute():
    return {N: [prompt_weight(maxrl, p, N) for p in CHANCES] for N in SIZES}


def error(result, fewer):
    """Largest relative difference from the formula with T = N - fewer."""
    return max(
        abs(w / formula(p, int(N) - fewer) - 1) for N, ws in result.items() for p, w in zip(CHANCES, ws, strict=True)
    )


def verdict(result):
    return decide(error(result, fewer=1) < 1e-5)


def effect(result):
    w = result["8"][0]
    errors = f"T = N - 1 is up to {error(result, fewer=1):.0e} off, T = N up to {error(result, fewer=0):.0%}"
    return f"{errors}; w(0.01) = {w:.2f} at N = 8"


def draw(result):
    panel = axes(
        "MaxRL weights hard prompts more, up to N - 1 times",
        "chance p that a response is correct",
        "weight of ∇p",
        xscale="log",
        yscale="log",
    )
    for N, color in zip(result, (BLUE, GREEN, ORANGE, RED), strict=True):
        panel.plot(CHANCES, result[N], "o", color=color, label=f"maxrl.py, N = {N}")
        panel.plot(CHANCES, [formula(p, int(N) - 1) for p in CHANCES], color=color)
    panel.plot(CHANCES, [1 / p for p in CHANCES], color="black", linestyle=":", label="1/p, maximum likelihood")
    panel.legend()
    return panel.figure
