"""On hard problems, training with MaxRL ends with a higher pass@k than with GRPO, at no lower pass@1.

Said by: MaxRL, 2602.02710, Abstract ("MaxRL Pareto-dominates existing methods in all models and tasks we tested").

Tested: maxrl.py and grpo.py for 60 steps of 64 responses on sums of 5 to 8 terms, of which the base model solves few:
on the default problems every method ends with a pass@k near 1. pass@32, from 128 samples, of 128 held-out problems.

Rule: 95 % intervals of the paired differences. Reproduced if MaxRL's pass@32 is higher by 0.03 or more and the interval
excludes 0, and its mean pass@1 is not lower by 0.03; contradicted if the interval excludes such a gain in pass@32; one
that is certain but smaller, or at a lower pass@1, is inconclusive.
"""

from claims.court import INCONCLUSIVE, REPRODUCED
from claims.runs import HARD, compare, draw_arms, judged, summarize

KIND = "runs"
SMALLEST = 0.03
ARMS = {"GRPO": f"grpo {HARD}", "MaxRL": f"maxrl {HARD}"}


def compute(seeds):
    once = {"pass@1": lambda t: t.last()}
    return compare(ARMS, [("GRPO", "MaxRL")], seeds, lambda t: t.last("eval/pass@32"), **once)


def verdict(result):
    word = judged(result, "GRPO → MaxRL", SMALLEST)
    loses = result["arms"]["MaxRL"]["pass@1"] < result["arms"]["GRPO"]["pass@1"] - 0.03
    return INCONCLUSIVE if word == REPRODUCED and loses else word


def effect(result):
    once = ", ".join(f"{arm['pass@1']:.3f}" for arm in result["arms"].values())
    return f"{summarize(result, 'pass@32')}; pass@1 {once}"


def draw(result):
    return draw_arms(result, "Sums of 5 to 8 terms: GRPO and MaxRL", metric="pass@32")
