"""Computing the output layer in fp32 removes most of the mismatch of bf16.

Said by: MiniMax-M1, 2506.13585, Fig. 3, for its own model, and ScaleRL, 2510.13786, as part of its recipe.

Tested: the scores of fp16_removes_the_mismatch.py. The embedded model's vocabulary has 99 tokens, theirs more than
100,000.

Rule: reproduced if the mean |Δlog p| falls by at least a half; else contradicted, for a vocabulary of this size.

Not testable here: the embedded model's output layer has 99 rows, theirs more than 100,000.
"""

from claims.court import axes, bars, decide
from claims.fp16_removes_the_mismatch import compute
from tools.plots import BLUE, GRAY

__all__ = ["compute"]
KIND = "model"


def less(result):
    return 1 - result["bf16, fp32 head"]["mean"] / result["bf16"]["mean"]


def verdict(result):
    return decide(less(result) >= 0.5)


def effect(result):
    return f"{less(result):.0%} less mean |Δlog p|"


def draw(result):
    panel = axes("An output layer in fp32 takes a part of the mismatch away", "", "mean |Δlog p| of a token")
    bars(panel, {arm: result[arm]["mean"] for arm in ("bf16", "bf16, fp32 head")}, (GRAY, BLUE))
    return panel.figure
