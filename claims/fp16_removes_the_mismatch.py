"""FP16 instead of BF16 removes most of the mismatch between engine and learner.

Said by: 2510.26788.

Tested: 1,024 responses of the embedded model: mean |Δlog p| of a token against fp32 if everything is computed in fp16,
in bf16, in bf16 with the output layer in fp32, and in bf16 with 8-bit weights.

Rule: reproduced if the mean in fp16 is at most a quarter of that in bf16; else contradicted.
"""

import grpo
from claims.court import axes, bars, decide, embedded, scored
from tools.plots import BLUE, GRAY, GREEN, ORANGE

KIND = "model"
ARMS = {"fp16": ("fp16", False), "bf16, fp32 head": ("bf16", True), "bf16": ("bf16", False), "fp8": ("fp8", False)}


def compute():
    model, batch, _ = embedded(128, 8, grpo.Args())
    learner = scored(model, batch, "fp32", grpo.Args())
    result = {}
    for arm, (precision, head) in ARMS.items():
        difference = (scored(model, batch, precision, grpo.Args(fp32_lm_head=head)) - learner)[
            batch.response_mask
        ].abs()
        result[arm] = {"mean": difference.mean().item(), "largest": difference.max().item()}
    return result


def verdict(result):
    return decide(result["fp16"]["mean"] <= result["bf16"]["mean"] / 4)


def effect(result):
    means = ", ".join(f"{of_arm['mean']:.1e} ({arm})" for arm, of_arm in result.items())
    return f"mean change of log π per token: {means}"


def draw(result):
    panel = axes("FP16 is several times closer to FP32 than BF16 is", "", "mean |Δlog p| of a token", yscale="log")
    bars(panel, {name: of_arm["mean"] for name, of_arm in result.items()}, (GREEN, BLUE, GRAY, ORANGE))
    return panel.figure
