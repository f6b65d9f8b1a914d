"""A penalty that grows over the last tokens before the length limit improves training.

Said by: DAPO, 2503.14476, Sec. 1 ("Overlong Reward Shaping, which reduces reward noise and stabilizes training"), Sec.
3.4 and Table 1 (soft overlong punishment on top of overlong filtering).

Tested: dapo.py without dynamic sampling (one round of prompts) for 30 steps with a limit of 40 tokens: truncated
responses count as incorrect or are left out of the loss, each with and without the penalty over the last 8 tokens,
about the paper's fraction of the limit.

Rule: 95 % interval of the paired difference in held-out accuracy where truncated responses count as incorrect.
Reproduced if the penalty gains 0.03 or more and the interval excludes 0; contradicted if the interval excludes a gain
of 0.03; one that is certain but smaller is inconclusive. The same where they are left out, and response lengths in the
last 5 steps, are reported.
"""

from claims.runs import TIGHT, compare, draw_arms, judged, summarize

KIND = "runs"
SMALLEST = 0.03
ARMS = {
    "incorrect": f"dapo {TIGHT} --overlong-cache 0",
    "penalty": f"dapo {TIGHT} --overlong-cache 8",
    "left out": f"dapo {TIGHT} --overlong-cache 0 --overlong-filter",
    "penalty, left out": f"dapo {TIGHT} --overlong-cache 8 --overlong-filter",
}


def compute(seeds):
    pairs = [("incorrect", "penalty"), ("left out", "penalty, left out")]
    return compare(ARMS, pairs, seeds, length=lambda t: t.mean("length", 5))


def verdict(result):
    return judged(result, "incorrect → penalty", SMALLEST)


def effect(result):
    lengths = ", ".join(f"{arm['length']:.0f}" for arm in result["arms"].values())
    return f"{summarize(result)}; tokens per response at the end: {lengths}"


def draw(result):
    return draw_arms(result, "A limit of 40 tokens, with and without a penalty on the last 8")
