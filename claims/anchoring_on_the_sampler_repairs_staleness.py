"""Importance sampling recovers accuracy that stale rollouts lose.

Said by: slides on asynchronous training ("applying importance sampling also helps"); DPPO, 2602.04879, uses the
engine's probability in the ratio's denominator; AReaL, 2505.24298, keeps a recomputed ratio and weights it by
π_old / π_engine.

Tested: grpo.py with rollouts 8 batches old (two updates from each, learning rate 1.5e-4, 48 steps): uncorrected; with
recomputed log-probs and truncated importance sampling (TIS); with the engine's log-probs in the ratio and its clip
(anchored).

Rule: by held-out accuracy, 95 % intervals of the paired difference from the uncorrected arm. Reproduced if the anchored
arm gains 0.05 or more and its interval excludes 0; contradicted if the interval excludes a gain of 0.05; one that is
certain but smaller is inconclusive. TIS is reported.
"""

from claims.runs import STALE, compare, draw_arms, judged, summarize

KIND = "runs"
SMALLEST = 0.05
ARMS = {
    "uncorrected": f"grpo {STALE} --tis-cap 0",
    "TIS": f"grpo {STALE}",
    "anchored": f"grpo {STALE} --tis-cap 0 --ratio-anchor engine",
}


def compute(seeds):
    return compare(ARMS, [("uncorrected", "anchored"), ("uncorrected", "TIS")], seeds)


def verdict(result):
    return judged(result, "uncorrected → anchored", SMALLEST)


effect = summarize


def draw(result):
    return draw_arms(result, "Rollouts 8 batches old: what to divide by")
