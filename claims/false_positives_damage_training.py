"""A verifier that accepts incorrect answers now and then damages training.

Said by: Kimi k1.5, 2501.12599, Sec. 2.1 ("some complex reasoning problems may have relatively simple and easily
guessable answers, leading to false positive verification"; such questions are excluded), Open-Reasoner-Zero.

Tested: grpo.py for 30 steps in which an incorrect answer gets the reward 1 at random with probability q = 0, 0.2 and
0.5. Held-out accuracy is measured with the true verifier.

Rule: 95 % intervals of the paired differences from q = 0. Reproduced if q = 0.2 loses 0.05 or more and the interval
excludes 0, and q = 0.5 has no higher mean than q = 0.2; contradicted if the interval at q = 0.2 excludes a loss of
0.05; a loss that is certain but smaller, or that q = 0.5 does not have, is inconclusive.
"""

from statistics import mean

from claims.court import INCONCLUSIVE, REPRODUCED
from claims.runs import compare, draw_arms, judged, summarize

KIND = "runs"
SMALLEST = 0.05
ARMS = {"q = 0": "grpo", "q = 0.2": "grpo+lenient=0.2", "q = 0.5": "grpo+lenient=0.5"}


def compute(seeds):
    return compare(ARMS, [("q = 0", "q = 0.2"), ("q = 0", "q = 0.5")], seeds)


def verdict(result):
    word = judged(result, "q = 0 → q = 0.2", SMALLEST, sign=-1)
    rises = mean(result["arms"]["q = 0.5"]["values"]) > mean(result["arms"]["q = 0.2"]["values"])
    return INCONCLUSIVE if word == REPRODUCED and rises else word


effect = summarize


def draw(result):
    return draw_arms(result, "Incorrect answers accepted with chance q")
