"""PPO's clipped loss has the gradient of the ratio times the advantage under a mask.

Said by: write-ups that print the objective as M r A, with M = 0 once the ratio has left 1 ± ε in the direction of the
advantage.

Tested: ppo.py's loss and its gradient for ratios of 0.3 to 2 and advantages of 1 and -1, against M r A.

Rule: reproduced if the gradients differ by less than 1e-9 everywhere; else contradicted. The values are compared too.
"""

import ppo
from claims.court import axes, coefficients, decide, loss_of
from tools.plots import BLUE, ORANGE, RED

import torch

KIND = "exact"
RATIOS = [round(0.3 + 0.017 * i, 3) for i in range(101)]


def compute():
    ratio = torch.tensor(RATIOS * 2, dtype=torch.float64)[:, None]  # (B, 1)
    advantage = torch.tensor([1.0] * len(RATIOS) + [-1.0] * len(RATIOS), dtype=torch.float64)[:, None]
    old = torch.full_like(ratio, 0.3).log()
    mask = ~(((advantage > 0) & (ratio > 1.2)) | ((advantage < 0) & (ratio < 0.8)))
    masked = mask * ratio * advantage
    args = ppo.Args()
    gradient = coefficients(ppo, old + ratio.log(), advantage, args, old_logp=old)
    loss, _ = loss_of(ppo, old + ratio.log(), advantage, args, old)
    return {
        "largest difference of gradients": (gradient - masked).abs().max().item(),
        "largest difference of values": (loss + masked).abs().max().item(),
        "objective, A = 1": (-loss)[: len(RATIOS), 0].tolist(),
        "M r A, A = 1": masked[: len(RATIOS), 0].tolist(),
    }


def verdict(result):
    return decide(result["largest difference of gradients"] < 1e-9)


def effect(result):
    gradients, values = (result[f"largest difference of {what}"] for what in ("gradients", "values"))
    return f"gradients differ by up to {gradients:.0e}, values by up to {values:.1f} where the mask is 0"


def draw(result):
    panel = axes("A > 0: the value of PPO's objective is not M r A, its slope is", "ratio r", "per token, A = 1")
    panel.plot(RATIOS, result["objective, A = 1"], color=BLUE, label="ppo.py: min(r A, clip(r) A)")
    panel.plot(RATIOS, result["M r A, A = 1"], color=ORANGE, linestyle="--", label="M r A")
    panel.axvline(1.2, color=RED, linewidth=0.8, linestyle=":", label="1 + ε: both slopes are 0 beyond")
    panel.legend()
    return panel.figure
