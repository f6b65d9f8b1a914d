"""One token with an extreme ratio moves GMPO's weight of a response less than GRPO's.

Said by: GMPO, 2507.20673, Abstract ("maximizes the geometric mean of token-level rewards, which is inherently less
sensitive to outliers").

Tested: a response of 10 or 100 tokens with a negative advantage, for which no clip limits a growing ratio. All ratios
are 1 except one of 1 to 30; the mean weight of the tokens' ∇log π in grpo.py and gmpo.py.

Rule: reproduced if at an outlier of 10 the weight moves away from 1 less than half as far in gmpo.py, at both lengths;
else contradicted.
"""

import gmpo
import grpo
from claims.court import axes, coefficients, decide
from tools.plots import BLUE, ORANGE

import torch

KIND = "exact"
OUTLIERS, LENGTHS = (1, 2, 3, 5, 10, 20, 30), (10, 100)
SCRIPTS = {"grpo": grpo, "gmpo": gmpo}


def compute():
    result = {}
    for name, script in SCRIPTS.items():
        for length in LENGTHS:
            logp = torch.zeros(len(OUTLIERS), length, dtype=torch.float64)  # (B, T)
            logp[:, 0] = torch.tensor(OUTLIERS, dtype=torch.float64).log()
            old, advantages = torch.zeros_like(logp), -torch.ones_like(logp)
            c = -coefficients(script, logp, advantages, script.Args(), old_logp=old)  # (B, T)
            result[f"{name}, {length} tokens"] = c.mean(1).tolist()
    return result


def away(result, name, length):
    """How far an outlier with ratio 10 moves the mean weight from 1."""
    return result[f"{name}, {length} tokens"][OUTLIERS.index(10)] - 1


def verdict(result):
    return decide(all(away(result, "gmpo", n) < away(result, "grpo", n) / 2 for n in LENGTHS))


def effect(result):
    parts = [f"{1 + away(result, name, n):.2f} ({name}, {n} tokens)" for n in LENGTHS for name in SCRIPTS]
    return "mean weight with one ratio of 10: " + ", ".join(parts)


def draw(result):
    panel = axes("An outlier moves a geometric mean less", "ratio of one token, the others 1", "mean weight of ∇log π")
    looks = ((ORANGE, "-"), (ORANGE, ":"), (BLUE, "-"), (BLUE, ":"))
    for (name, weights), (color, line) in zip(result.items(), looks, strict=True):
        panel.plot(OUTLIERS, weights, marker=".", color=color, linestyle=line, label=name)
    panel.legend()
    return panel.figure
