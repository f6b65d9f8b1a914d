"""Responses grow longer in training because thinking pays.

Said by: DeepSeek-R1, 2501.12948, Fig. 3 and Sec. 2.2.4 ("the thinking time of DeepSeek-R1-Zero shows consistent
improvement", which is "not the result of external adjustments but rather an intrinsic development within the model").
Dr. GRPO, 2503.20783, attributes part of the growth to the optimizer's bias towards long incorrect answers, which does
not need a reward for thinking.

Tested: grpo.py for 30 steps with its rewards, and with each group's rewards shuffled: as many responses are rewarded in
each group, but independently of their content. Mean length over the last 5 steps.

Rule: 95 % interval of the paired difference. Reproduced if true rewards make responses longer than shuffled ones do by
5 tokens or more, with the interval above 0; contradicted if the interval excludes 5 tokens; a difference that is
certain but smaller is inconclusive.
"""

from claims.runs import compare, draw_arms, judged, summarize

KIND = "runs"
SMALLEST = 5
ARMS = {"true rewards": "grpo", "shuffled": "grpo+shuffled"}


def compute(seeds):
    return compare(ARMS, [("shuffled", "true rewards")], seeds, lambda t: t.mean("length", 5), "length")


def verdict(result):
    return judged(result, "shuffled → true rewards", SMALLEST)


def effect(result):
    return summarize(result, "tokens per response", ".1f")


def draw(result):
    return draw_arms(result, "Response length, with true and with shuffled rewards", "tokens", "tokens per response")
