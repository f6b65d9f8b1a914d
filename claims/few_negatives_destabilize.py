"""Where training collapses, masking under 1 % of the tokens, pushed too far down, saves more than as many at random.

Said by: DPPO, 2602.04879, Sec. 5.3 ("The primary source of instability is a small subset of updates on negative samples
that push the policy far outside the trust region"; masking these, at most 0.5 % of the tokens, is enough).

Tested: dppo.py (total variation, δ = 0.2) for 25 steps of 64 responses with 16 updates each, at a learning rate
of 1e-4: no mask, the mask on negative advantages only, on positive ones only, on both; and as a control, a mask on as
many randomly chosen tokens of negative advantage as the negative half masks. In the paper the negative half makes
training stable. Here every arm except the one with both halves ends below the untrained model, so we measure how much
of the collapse remains.

Rule: by held-out accuracy, 95 % intervals of the paired differences. Reproduced if the negative half gains 0.05 or more
over the random control, the interval excludes 0, and it masks less than 1 % of the loss weight; contradicted if the
interval excludes a gain of 0.05, or if it takes more than 1 % to have it. The rule on void comparisons does not hold
here: that little is masked is a part of the claim.
"""

from claims.court import CONTRADICTED, REPRODUCED
from claims.runs import REUSE, compare, draw_arms, judged, summarize

KIND = "runs"
SMALLEST = 0.05
ARMS = {
    "no mask": f"dppo {REUSE} --delta 1e6",
    "random": f"dppo+random {REUSE}",
    "negative": f"dppo+negative {REUSE}",
    "positive": f"dppo+positive {REUSE}",
    "both": f"dppo {REUSE}",
}


def compute(seeds):
    pairs = [("random", "negative"), ("no mask", "negative"), ("no mask", "positive"), ("no mask", "both")]
    return compare(ARMS, pairs, seeds)


def verdict(result):
    gain = judged(result, "random → negative", SMALLEST)
    few = result["arms"]["negative"]["clipped"] < 0.01
    return CONTRADICTED if gain == REPRODUCED and not few else gain


def deciding(result):
    """What else the verdict depends on, besides the difference."""
    return f"masked {result['arms']['negative']['clipped']:.1%}"


def effect(result):
    peaks = ", ".join(f"{max(arm['curve']):.2f}" for arm in result["arms"].values())
    return f"{summarize(result)}; training accuracy at its best {peaks}"


def draw(result):
    return draw_arms(result, "16 updates from each batch: which tokens DPPO masks")
