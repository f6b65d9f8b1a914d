"""On problems that the base model hardly ever solves, MaxRL ends with a higher pass@k than GRPO, at no lower pass@1.

Said by: MaxRL, 2602.02710, Abstract ("MaxRL Pareto-dominates existing methods in all models and tasks we tested").

Tested: grpo.py, maxrl.py and methods/pass_at_k.py (k = 2) on search-hard, where the base model solves 0.006 at the
first try and 0.07 within 16; 40 steps of 64 responses, each at the learning rate that is best for pass@16; a fair trial
(claims/fair.py). pass@16 of 256 held-out problems, from 16 samples. Expressions drawn at random have a pass@16 of
0.618, above all arms: the metric does not tell search from guesses in the right form.

Rule: 95 % interval of the difference. Reproduced if MaxRL's pass@16 is higher by 0.03 or more and the interval excludes
0, and its mean pass@1 is not lower by 0.03; contradicted if the interval excludes such a gain in pass@16; one that is
certain but smaller, or at a lower pass@1, is inconclusive. Pass@k Training is reported.
"""

from claims import fair
from claims.court import INCONCLUSIVE, REPRODUCED, chance

KIND = "runs"
SMALLEST = 0.03
WORLDS = ("search-hard",)
ARMS = {"GRPO": "grpo", "MaxRL": "maxrl", "Pass@k": "pass_at_k"}
PAIRS = [("GRPO", "MaxRL"), ("GRPO", "Pass@k")]


def METRIC(run):  # also of the sweep
    return run.last("eval/pass@16")


def compute(seeds):
    return fair.compute(ARMS, PAIRS, seeds, WORLDS, metric=METRIC, **{"pass@1": lambda t: t.last()})


def of_worlds(result):
    return fair.in_each_world(result, PAIRS[0], SMALLEST)


def verdict(result):
    word = fair.of_both(of_worlds(result))
    once = {name: result["arms"][f"{name}, {WORLDS[0]}"]["pass@1"] for name in ("GRPO", "MaxRL")}
    return INCONCLUSIVE if word == REPRODUCED and once["MaxRL"] < once["GRPO"] - 0.03 else word


def effect(result):
    once = ", ".join(f"{name} {arm['pass@1']:.3f}" for name, arm in result["arms"].items())
    random = f"random expressions {chance(WORLDS[0], 16):.3f}"
    return f"{fair.effect(result, of_worlds(result), 'pass@16')}; {random}; pass@1 {once}"


def draw(result):
    return fair.draw(result, "Search with 5 and 6 numbers: GRPO, MaxRL and Pass@k Training", "pass@16")
