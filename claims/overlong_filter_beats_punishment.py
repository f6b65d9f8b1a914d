"""Leaving truncated responses out of the loss is better than counting them as incorrect.

Said by: DAPO, 2503.14476, Sec. 3.4 and Table 1 (filtering "significantly stabilizes training and enhances performance";
with a punishment "a sound reasoning process can be penalized solely due to its excessive length").

Tested: dapo.py without dynamic sampling (one round of prompts) on sums for 30 steps of 64 responses with a limit of 40
tokens, which cuts off many correct answers; a fair trial (claims/fair.py). Truncated responses either count as
incorrect or are left out of the loss. Held-out accuracy is measured with the same limit.

Rule: 95 % interval of the difference in held-out accuracy. Reproduced if the filter gains 0.03 or more and the
interval excludes 0; contradicted if the interval excludes a gain of 0.03; one that is certain but smaller is
inconclusive. The fraction truncated in the last 5 steps is reported.
"""

from claims import fair

KIND = "runs"
SMALLEST = 0.03
WORLDS = ("sums",)
LIMITED = "dapo --max-rounds 1 --max-response-tokens 40"
ARMS = {
    "incorrect": f"{LIMITED} --overlong-cache 0",
    "left out": f"{LIMITED} --overlong-cache 0 --overlong-filter",
}
PAIR = ("incorrect", "left out")


def compute(seeds):
    return fair.compute(ARMS, [PAIR], seeds, WORLDS, truncated=lambda t: t.mean("truncated", 5))


def verdict(result):
    return fair.in_each_world(result, PAIR, SMALLEST)["sums"]


def effect(result):
    shares = ", ".join(f"{arm['truncated']:.0%}" for arm in result["arms"].values())
    return f"{fair.effect(result, {'sums': verdict(result)})}; truncated at the end: {shares}"


def draw(result):
    return fair.draw(result, "A limit of 40 tokens: what to do with truncated responses")
