"""FP16 instead of BF16 removes most of the mismatch between engine and learner.

Said by: "Defeating the Training-Inference Mismatch via FP16", 2510.26788, Abstract ("simply reverting to FP16
effectively eliminates this mismatch").

Tested: grpo.py for 10 steps of 64 responses, with engine and learner in bf16, and with both in fp16 (which scales the
loss). Both run on a CPU; the engine goes token by token through its cache, the learner through whole responses. Logged
is |Δp| of the sampled tokens, of which the mean over the run is taken.

Rule: 95 % interval of the paired difference in log10 of that mean. Reproduced if fp16 has at most a quarter of bf16's
(the difference is -0.602 or less) and the interval excludes 0; contradicted if the interval excludes such a fall; one
that is certain but smaller is inconclusive.
"""

from math import log10

from claims.runs import compare, draw_arms, judged, summarize

KIND = "runs"
SMALLEST = log10(4)
SHORT = "--steps 10 --eval-problems 16"
ARMS = {p: f"grpo {SHORT} --learner-precision {p} --rollout-precision {p}" for p in ("bf16", "fp16")}


def mismatch(t):
    return log10(max(t.mean("mismatch_mean"), 1e-9))  # less is the rounding of fp32


def compute(seeds):
    return compare(ARMS, [("bf16", "fp16")], seeds, mismatch, "mismatch_mean")


def verdict(result):
    return judged(result, "bf16 → fp16", SMALLEST, sign=-1)


def effect(result):
    return summarize(result, "log10 of the mean |Δp|")


def draw(result):
    title = "Engine and learner in FP16 agree better than in BF16"
    return draw_arms(result, title, "mean |Δp| of a step", "log10 of the mean |Δp|")
