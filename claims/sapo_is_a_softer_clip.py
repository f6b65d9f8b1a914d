"""SAPO's gate is a soft trust region: the gradient is whole at a ratio of 1 and fades on both sides.

Said by: SAPO, 2511.20347, Abstract ("a smooth, temperature-controlled gate that adaptively attenuates off-policy
updates", which "forms a continuous trust region") and Eq. 5 and 6, with τ = 1 for positive and 1.05 for negative
advantages.

Tested: the factor of a token's ∇log π for an advantage of 1 and ratios of 0.2 to 10: methods/sapo.py, grpo.py, and the
ratio itself, without a gate.

Rule: reproduced if the gate leaves all of the gradient at r = 1, ever less the further away on both sides, and less
than 10 % at r = 5; else contradicted.
"""

import grpo
from claims.court import axes, coefficients, decide
from methods import sapo
from tools.plots import BLUE, GRAY, ORANGE

import torch

KIND = "exact"
RATIOS = (0.2, 0.4, 0.6, 0.8, 1.0, 1.1, 1.2, 1.21, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


def compute():
    ratio = torch.tensor(RATIOS, dtype=torch.float64)[:, None]  # (B, 1)
    old, advantage = torch.full_like(ratio, 0.05).log(), torch.ones_like(ratio)
    scripts = {"sapo": sapo, "grpo": grpo}
    return {
        name: coefficients(script, old + ratio.log(), advantage, script.Args(), old_logp=old)[:, 0].tolist()
        for name, script in scripts.items()
    }


def share(result, ratio):
    """Fraction of the gradient r A ∇log π that SAPO keeps at a ratio."""
    return result["sapo"][RATIOS.index(ratio)] / ratio


def verdict(result):
    shares, one = [share(result, r) for r in RATIOS], RATIOS.index(1.0)
    fades = shares[: one + 1] == sorted(shares[: one + 1]) and shares[one:] == sorted(shares[one:], reverse=True)
    return decide(fades and abs(shares[one] - 1) < 1e-6 and share(result, 5.0) < 0.1)


def effect(result):
    shares = ", ".join(f"{share(result, r):.0%} at r = {r:g}" for r in (0.2, 1.2, 1.5, 2.0, 3.0, 5.0))
    return f"left of the gradient with τ = 1: {shares}; the clip leaves 0 beyond 1.2"


def draw(result):
    panel = axes(
        "SAPO with τ = 1 holds back from a ratio of 3 on, the clip from 1.2",
        "ratio r, A = 1",
        "weight of ∇log π",
        xlim=(0, 10),
        ylim=(0, 4),
    )
    panel.plot(RATIOS, RATIOS, color=GRAY, linestyle=":", label="no gate: r")
    panel.plot(RATIOS, result["sapo"], color=ORANGE, marker=".", label="methods/sapo.py")
    panel.plot(RATIOS, result["grpo"], color=BLUE, marker=".", label="grpo.py")
    panel.legend()
    return panel.figure
