"""Computing the output layer in fp32 removes most of the mismatch of bf16.

Said by: MiniMax-M1, 2506.13585, Sec. 3.2 and Fig. 3, for its own model ("we increased the precision of the LM output
head to FP32, thereby realigning the two theoretically identical probabilities"), and ScaleRL, 2510.13786, as part of
its recipe.

Tested: 1,024 responses of the embedded model: mean |Δlog p| of a token against fp32 if everything is computed in bf16,
and if the output layer is computed in fp32. The embedded model's vocabulary has 99 tokens, theirs more than 100,000.

Rule: reproduced if the mean |Δlog p| falls by at least a half; else contradicted, for a vocabulary of this size.

Not testable here: the embedded model's output layer has 99 rows, theirs more than 100,000.
"""

import grpo
from claims.court import axes, bars, decide, embedded, scored
from tools.plots import BLUE, GRAY

KIND = "model"
ARMS = {"bf16, fp32 head": True, "bf16": False}


def compute():
    model, batch, _ = embedded(128, 8, grpo.Args())
    learner = scored(model, batch, "fp32", grpo.Args())
    result = {}
    for arm, fp32_head in ARMS.items():
        engine = scored(model, batch, "bf16", grpo.Args(fp32_lm_head=fp32_head))
        result[arm] = {"mean": (engine - learner).abs()[batch.response_mask].mean().item()}
    return result


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
