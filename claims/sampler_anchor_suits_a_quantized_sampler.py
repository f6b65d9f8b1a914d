"""A ratio anchored on the engine is better than recomputed log-probs where the engine's numerics differ.

Said by: DPPO, 2602.04879, Sec. 5.2 ("The trust region must be defined with respect to the original behavior policy ...
Using a recomputed on-policy distribution as the anchor leads to instability").

Tested: grpo.py for 30 steps of 64 responses with 4-bit weights in the engine: log-probs recomputed by the learner,
without and with TIS; ratio and clip with the engine's log-probs, which differ from the learner's before any update.
dppo.py, whose mask bounds the change of a probability instead of a ratio, is also reported with both.

Rule: by held-out accuracy, 95 % interval of the paired difference from recomputed log-probs without TIS. Reproduced if
the anchor gains 0.05 or more and the interval excludes 0; contradicted if the interval excludes such a gain; one that
is certain but smaller is inconclusive. Void where less than 1 % is clipped.
"""

from claims.runs import compare, draw_arms, judged, judged_by_clip, summarize

KIND = "runs"
SMALLEST = 0.05
ARMS = {
    "recomputed": "grpo --rollout-precision int4 --tis-cap 0",
    "with TIS": "grpo --rollout-precision int4",
    "anchored": "grpo --rollout-precision int4 --tis-cap 0 --ratio-anchor engine",
    "DPPO, recomputed": "dppo --rollout-precision int4 --ratio-anchor learner",
    "DPPO, anchored": "dppo --rollout-precision int4",
}


def compute(seeds):
    pairs = [("recomputed", "anchored"), ("recomputed", "with TIS"), ("DPPO, recomputed", "DPPO, anchored")]
    return compare(ARMS, pairs, seeds)


def verdict(result):
    return judged_by_clip(result, judged(result, "recomputed → anchored", SMALLEST))


effect = summarize


def draw(result):
    return draw_arms(result, "An engine with weights of 4 bits: what to divide by")
