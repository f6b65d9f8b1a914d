"""Where lengths vary tenfold, GRPO's mean over each response makes incorrect ones longer than a constant does.

Said by: Dr. GRPO, 2503.20783, Abstract ("an optimization bias in Group Relative Policy Optimization (GRPO), which
artificially increases response length (especially for incorrect outputs) during training") and Sec. 3. There the mean
and the std were removed together.

Tested: grpo.py on search (40 steps of 64 responses), where responses have 20 to 200 tokens, and the same with a
response's loss divided by a constant as in dr_grpo.py; a fair trial (claims/fair.py). Mean length of incorrect
responses over the last 10 steps.

Rule: 95 % interval of the difference. Reproduced if incorrect responses are longer with the mean than with the constant
by 5 tokens or more and the interval excludes 0; contradicted if the interval excludes such a difference; one that is
certain but smaller is inconclusive. The lengths of correct responses and held-out accuracies are reported.
"""

from claims import fair

KIND = "runs"
SMALLEST = 5
WORLDS = ("search",)
ARMS = {"mean": "grpo", "constant": "grpo+dr_grpo.token_weights"}
PAIR = ("constant", "mean")


def compute(seeds):
    others = {"correct": lambda t: t.mean("length_correct", 10), "accuracy": lambda t: t.last()}
    incorrect = {"metric": lambda t: t.mean("length_incorrect", 10), "curve": "length_incorrect"}
    return fair.compute(ARMS, [PAIR], seeds, WORLDS, **incorrect, **others)


def of_worlds(result):
    return fair.in_each_world(result, PAIR, SMALLEST)


def verdict(result):
    return fair.of_both(of_worlds(result))


def effect(result):
    correct, accuracy = (
        ", ".join(f"{arm[key]:.3g}" for arm in result["arms"].values()) for key in ("correct", "accuracy")
    )
    lengths = fair.effect(result, of_worlds(result), "tokens of incorrect responses", ".1f")
    return f"{lengths}; of correct ones {correct}; accuracy {accuracy}"


def draw(result):
    return fair.draw(result, "A response's loss as a mean or divided by a constant", "tokens of incorrect responses")
