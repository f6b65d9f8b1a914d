"""GRPO does not differ from GRPO: with other seeds, or other rounding, it ends within 0.05 of itself.

Said by: nobody. It is the control for all claims by runs: what the interval of no difference looks like.

Tested: grpo.py for 30 steps of 64 responses; the same with seeds of its own; and with the same seeds and micro-batches
of a quarter of the tokens, which changes nothing but the order of additions. Held-out accuracy after the last step, and
the mean absolute difference of a seed from itself with other rounding.

Rule: 95 % intervals of the differences. Reproduced if both exclude 0.05 in both directions; contradicted if one lies
outside of 0.05 in either direction; else inconclusive.
"""

from statistics import mean

from claims.court import CONTRADICTED, INCONCLUSIVE, REPRODUCED
from claims.runs import compare, draw_arms, summarize

KIND = "runs"
SMALLEST = 0.05
ARMS = {
    "GRPO": "grpo",
    "other seeds": "grpo @100",
    "other rounding": "grpo --micro-batch-tokens 1024",
}


def compute(seeds):
    return compare(ARMS, [("GRPO", "other seeds"), ("GRPO", "other rounding")], seeds)


def verdict(result):
    ends = [(abs(mean) + half, abs(mean) - half) for mean, half, _ in result["differences"].values()]
    if max(far for far, _ in ends) < SMALLEST:
        return REPRODUCED
    return CONTRADICTED if max(near for _, near in ends) > SMALLEST else INCONCLUSIVE


def effect(result):
    values = [result["arms"][arm]["values"] for arm in ("GRPO", "other rounding")]
    moved = mean(abs(x - y) for x, y in zip(*values, strict=True))
    return f"{summarize(result)}; rounding alone moves a seed by {moved:.3f} on average"


def draw(result):
    return draw_arms(result, "GRPO against itself")
