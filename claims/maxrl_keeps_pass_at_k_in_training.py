"""On hard problems, training with MaxRL ends with a higher pass@k than with GRPO, at no lower pass@1.

Said by: MaxRL, 2602.02710, Abstract ("MaxRL Pareto-dominates existing methods in all models and tasks we tested").

Tested: maxrl.py and grpo.py for 60 steps of 64 responses on sums of 5 to 8 terms, of which the base model solves few:
on the default problems every method ends with a pass@k near 1. Each has the learning rate that is best for pass@1; a
fair trial (claims/fair.py). pass@32, from 32 samples, of 256 held-out problems.

Rule: 95 % interval of the difference. Reproduced if MaxRL's pass@32 is higher by 0.03 or more and the interval
excludes 0, and its mean pass@1 is not lower by 0.03; contradicted if the interval excludes such a gain in pass@32; one
that is certain but smaller, or at a lower pass@1, is inconclusive.
"""

from claims import fair
from claims.court import INCONCLUSIVE, REPRODUCED

KIND = "runs"
SMALLEST = 0.03
WORLDS = ("sums-hard",)
ARMS = {"GRPO": "grpo", "MaxRL": "maxrl"}
PAIR = ("GRPO", "MaxRL")


def compute(seeds):
    return fair.compute(
        ARMS, [PAIR], seeds, WORLDS, metric=lambda t: t.last("eval/pass@32"), **{"pass@1": lambda t: t.last()}
    )


def of_worlds(result):
    return fair.in_each_world(result, PAIR, SMALLEST)


def verdict(result):
    word = fair.of_both(of_worlds(result))
    once = {name: result["arms"][f"{name}, {WORLDS[0]}"]["pass@1"] for name in PAIR}
    return INCONCLUSIVE if word == REPRODUCED and once["MaxRL"] < once["GRPO"] - 0.03 else word


def effect(result):
    once = ", ".join(f"{name} {arm['pass@1']:.3f}" for name, arm in result["arms"].items())
    return f"{fair.effect(result, of_worlds(result), 'pass@32')}; pass@1 {once}"


def draw(result):
    return fair.draw(result, "Sums of 5 to 8 terms: GRPO and MaxRL", "pass@32")
