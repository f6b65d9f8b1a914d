"""A penalty that grows over the last tokens before the length limit improves training.

Said by: DAPO, 2503.14476, Sec. 1 ("Overlong Reward Shaping, which reduces reward noise and stabilizes training"), Sec.
3.4 and Table 1 (soft overlong punishment on top of overlong filtering).

Tested: dapo.py without dynamic sampling (one round of prompts) on sums for 30 steps of 64 responses with a limit of 40
tokens: truncated responses count as incorrect or are left out of the loss, each with and without the penalty over the
last 8 tokens, about the paper's fraction of the limit; a fair trial (claims/fair.py).

Rule: 95 % interval of the difference in held-out accuracy where truncated responses count as incorrect.
Reproduced if the penalty gains 0.03 or more and the interval excludes 0; contradicted if the interval excludes a gain
of 0.03; one that is certain but smaller is inconclusive. The same where they are left out, and response lengths in the
last 5 steps, are reported.
"""

from claims import fair
from claims.overlong_filter_beats_punishment import ARMS as WITHOUT
from claims.overlong_filter_beats_punishment import LIMITED

KIND = "runs"
SMALLEST = 0.03
WORLDS = ("sums",)
ARMS = WITHOUT | {
    "penalty": f"{LIMITED} --overlong-cache 8",
    "penalty, left out": f"{LIMITED} --overlong-cache 8 --overlong-filter",
}
PAIR = ("incorrect", "penalty")


def compute(seeds):
    pairs = [PAIR, ("left out", "penalty, left out")]
    return fair.compute(ARMS, pairs, seeds, WORLDS, length=lambda t: t.mean("length", 5))


def verdict(result):
    return fair.in_each_world(result, PAIR, SMALLEST)["sums"]


def effect(result):
    lengths = ", ".join(f"{arm['length']:.0f}" for arm in result["arms"].values())
    return f"{fair.effect(result, {'sums': verdict(result)})}; tokens per response at the end: {lengths}"


def draw(result):
    return fair.draw(result, "A limit of 40 tokens, with and without a penalty on the last 8")
