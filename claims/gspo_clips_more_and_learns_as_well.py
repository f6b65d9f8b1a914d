"""GSPO clips far more than GRPO and learns at least as well.

Said by: GSPO, 2507.18071, Abstract ("superior training efficiency and performance compared to the GRPO algorithm"),
Fig. 2 and Sec. 5.2 (a fraction of clipped tokens two orders of magnitude larger, and a higher training efficiency).

Tested: gspo.py with the paper's bounds (3e-4 and 4e-4) and grpo.py (0.2) on sums for 30 steps of 64 responses with 16
updates from each batch; a fair trial (claims/fair.py). Responses have about 35 tokens here and thousands in the paper,
so a response's ratio is noisier here.

Rule: by held-out accuracy, 95 % interval of the difference. Contradicted if GSPO clips less than 10 times as much as
GRPO, or if it is worse by 0.05 or more and the interval excludes 0; reproduced if it clips at least 10 times as much
and the interval excludes a loss of 0.05; else inconclusive.
"""

from claims import fair
from claims.court import CONTRADICTED

KIND = "runs"
SMALLEST = 0.05
WORLDS = ("sums",)
ARMS = {"GRPO": "grpo --update-epochs 4", "GSPO": "gspo --update-epochs 4"}
PAIR = ("GRPO", "GSPO")


def compute(seeds):
    return fair.compute(ARMS, [PAIR], seeds, WORLDS)


def clipped(result):
    """The fractions of the loss weight that GRPO and GSPO clip."""
    return [result["arms"][f"{name}, sums"]["clipped"] for name in PAIR]


def verdict(result):
    grpo, gspo = clipped(result)
    return CONTRADICTED if gspo < 10 * grpo else fair.in_each_world(result, PAIR, SMALLEST, lossless=True)["sums"]


def deciding(result):
    """What else the verdict depends on, besides the difference."""
    return "clipped {:.2%} and {:.2%}".format(*clipped(result))


def effect(result):
    return fair.effect(result, {"sums": verdict(result)})


def draw(result):
    return fair.draw(result, "16 updates from each batch: GRPO and GSPO")
