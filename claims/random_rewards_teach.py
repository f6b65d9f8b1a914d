"""Rewards that are coin flips improve a model.

Said by: "Spurious Rewards", 2506.10947, Abstract ("RLVR can elicit strong mathematical reasoning in certain language
models even with spurious rewards that have little, no, or even negative correlation with the correct answer": random
ones raise Qwen2.5-Math-7B on MATH-500 by 21.4 points, where correct rewards raise it by 29.1; other families of models
gain little). It attributes this to the clip, which favors what the model already does often.

Tested: grpo.py on sums (30 steps of 64 responses) and on search (40 steps) with correct rewards and with a coin flip
for each response (claims/variant.py); a fair trial (claims/fair.py), in which the best learning rate is the one at
which coin flips help most. What each run gains: held-out accuracy after the last step minus that of the base model on
the same problems.

Rule: 95 % interval of the gain by coin flips. Reproduced if it is 0.05 or more and the interval excludes 0;
contradicted if the interval excludes such a gain; one that is certain but smaller is inconclusive; so is one on which
the two worlds differ. The gain by correct rewards is reported.

Not testable here: the paper explains the gain by the clip, which at the learning rates that suit coin flips acts on
less than 0.1 % of the loss weight here, and by abilities that the model has and seldom uses.
"""

from claims import fair
from claims.court import judge
from tools.stats import interval

KIND = "runs"
SMALLEST = 0.05
ARMS = {"correct rewards": "grpo", "coin flips": "grpo+coin"}


def gain(run):
    return run.last() - run.rows[0]["eval/avg"]


def compute(seeds):
    pairs = [("correct rewards", "coin flips")]
    return fair.compute(ARMS, pairs, seeds, metric=gain, before=lambda t: t.rows[0]["eval/avg"])


def of_worlds(result):
    return {
        world: judge(*interval(result["arms"][f"coin flips, {world}"]["values"]), SMALLEST)
        for world in fair.worlds_of(result)
    }


def verdict(result):
    return fair.of_both(of_worlds(result))


def deciding(result):
    """What the verdict depends on: no difference between arms."""
    gains = {world: interval(result["arms"][f"coin flips, {world}"]["values"]) for world in fair.worlds_of(result)}
    return "by coin flips " + ", ".join(f"{world} {mean:+.3f} ± {half:.3f}" for world, (mean, half) in gains.items())


def effect(result):
    before = ", ".join(f"{name} {arm['before']:.3f}" for name, arm in result["arms"].items())
    return f"{fair.effect(result, of_worlds(result), 'gain')}; {deciding(result)}; before {before}"


def draw(result):
    return fair.draw(result, "What is gained by correct rewards and by coin flips", "gain in accuracy")
