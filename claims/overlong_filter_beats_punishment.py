"""Leaving truncated responses out of the loss is better than counting them as incorrect.

Said by: DAPO, 2503.14476, Sec. 3.4 and Table 1 (filtering "significantly stabilizes training and enhances performance";
with a punishment "a sound reasoning process can be penalized solely due to its excessive length").

Tested: dapo.py without dynamic sampling (one round of prompts) for 30 steps with a limit of 40 tokens, which cuts off
many correct answers. Truncated responses either count as incorrect or are left out of the loss. Held-out accuracy is
measured with the same limit.

Rule: 95 % interval of the paired difference in held-out accuracy. Reproduced if the filter gains 0.03 or more and the
interval excludes 0; contradicted if the interval excludes a gain of 0.03; one that is certain but smaller is
inconclusive. The fraction truncated in the last 5 steps is reported.
"""

from claims.runs import TIGHT, compare, draw_arms, judged, summarize

KIND = "runs"
SMALLEST = 0.03
ARMS = {
    "incorrect": f"dapo {TIGHT} --overlong-cache 0",
    "left out": f"dapo {TIGHT} --overlong-cache 0 --overlong-filter",
}


def compute(seeds):
    return compare(ARMS, [("incorrect", "left out")], seeds, truncated=lambda t: t.mean("truncated", 5))


def verdict(result):
    return judged(result, "incorrect → left out", SMALLEST)


def effect(result):
    shares = ", ".join(f"{arm['truncated']:.0%}" for arm in result["arms"].values())
    return f"{summarize(result)}; truncated at the end: {shares}"


def draw(result):
    return draw_arms(result, "A limit of 40 tokens: what to do with truncated responses")
