"""A verifier that accepts incorrect answers now and then damages training.

Said by: Kimi k1.5, 2501.12599, Sec. 2.1 ("some complex reasoning problems may have relatively simple and easily
guessable answers, leading to false positive verification"; such questions are excluded), Open-Reasoner-Zero.

Tested: grpo.py on sums for 30 steps of 64 responses in which an incorrect answer gets the reward 1 at random with
probability q = 0, 0.2 and 0.5; a fair trial (claims/fair.py). Held-out accuracy is measured with the true verifier.

Rule: 95 % intervals of the differences from q = 0. Reproduced if q = 0.2 loses 0.05 or more and the interval
excludes 0, and q = 0.5 has no higher mean than q = 0.2; contradicted if the interval at q = 0.2 excludes a loss of
0.05; a loss that is certain but smaller, or that q = 0.5 does not have, is inconclusive.
"""

from statistics import mean

from claims import fair
from claims.court import INCONCLUSIVE, REPRODUCED

KIND = "runs"
SMALLEST = 0.05
WORLDS = ("sums",)
ARMS = {"q = 0": "grpo", "q = 0.2": "grpo+lenient=0.2", "q = 0.5": "grpo+lenient=0.5"}


def compute(seeds):
    return fair.compute(ARMS, [("q = 0", "q = 0.2"), ("q = 0", "q = 0.5")], seeds, WORLDS)


def verdict(result):
    word = fair.in_each_world(result, ("q = 0", "q = 0.2"), SMALLEST, sign=-1)["sums"]
    few, many = (mean(result["arms"][f"q = {q}, sums"]["values"]) for q in (0.2, 0.5))
    return INCONCLUSIVE if word == REPRODUCED and many > few else word


def effect(result):
    return fair.effect(result, {"sums": verdict(result)})


def draw(result):
    return fair.draw(result, "Incorrect answers accepted with chance q")
