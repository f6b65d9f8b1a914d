"""Priming with 200 wrong solutions that show habits of search lets reinforcement learning improve a model.

Said by: "Cognitive Behaviors that Enable Self-Improving Reasoners", 2503.01307 (Abstract: "models primed with incorrect
solutions containing proper reasoning patterns achieve comparable performance to those trained on correct solutions").

Tested: the base model of worlds/search/habits.py that tries once and stops, and the same after ten passes over 200
solutions by writers who go on after a failure and always box a wrong answer. Then grpo.py for 40 steps of 64 responses,
each at its best learning rate of three (--sweep). Held-out accuracy after the last step. The sweep, on two seeds that
the verdict does not use, gave 0.171, 0.178 and 0.182 at 3e-5, 1e-4 and 3e-4 without priming, and 0.124, 0.130 and 0.108
with it.

Rule: 95 % interval of the paired difference. Reproduced if the primed model ends higher by 0.2 or more and the interval
excludes 0; contradicted if the interval excludes a gain of 0.2; one that is certain but smaller is inconclusive.
"""

from claims.runs import SEARCH, compare, draw_arms, judged, summarize

KIND = "runs"
SMALLEST = 0.2
ARMS = {
    "try once": f"grpo {SEARCH} --model runs/habits/try-once --lr 3e-4",
    "primed": f"grpo {SEARCH} --model runs/habits/primed --lr 1e-4",
}


def compute(seeds):
    before = {"before": lambda t: t.rows[0]["eval/avg"]}
    return compare(ARMS, [("try once", "primed")], seeds, **before)


def verdict(result):
    return judged(result, "try once → primed", SMALLEST)


def effect(result):
    before = ", ".join(f"{arm['before']:.3f}" for arm in result["arms"].values())
    return f"{summarize(result)}; before training {before}"


def draw(result):
    return draw_arms(result, "A base model that tries once, and the same primed with wrong solutions")
