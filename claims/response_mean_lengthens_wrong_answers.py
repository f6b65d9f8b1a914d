"""GRPO's mean over each response makes incorrect answers longer than dividing by a constant does.

Said by: Dr. GRPO, 2503.20783, Abstract ("an optimization bias in Group Relative Policy Optimization (GRPO), which
artificially increases response length (especially for incorrect outputs) during training") and Sec. 3. There the mean
and the std were removed together.

Tested: a 2 x 2 design on the base model with filler text (in the default model, guessing or working decides the
length): advantages with and without std; a response's loss as a mean or divided by a constant. grpo.py and dr_grpo.py
are two of the four; the others exchange one function. A fair trial (claims/fair.py). Mean length of incorrect
responses over the last 10 of 30 steps.

Rule: 95 % interval of the difference, with std. Reproduced if incorrect responses are longer with the mean than with
the constant by 2 tokens or more and the interval excludes 0; contradicted if the interval excludes such a difference;
one that is certain but smaller is inconclusive. The lengths of correct responses and held-out accuracies are reported.
"""

from claims import fair

KIND = "runs"
SMALLEST = 2
WORLDS = ("sums",)
BASE = "--model sums-filler"
ARMS = {
    "std, constant": f"grpo+dr_grpo.token_weights {BASE}",
    "std, mean": f"grpo {BASE}",
    "no std, constant": f"dr_grpo {BASE}",
    "no std, mean": f"grpo+dr_grpo.compute_advantages {BASE}",
}
PAIR = ("std, constant", "std, mean")
PAIRS = [PAIR, ("no std, constant", "no std, mean")]


def compute(seeds):
    others = {"correct": lambda t: t.mean("length_correct", 10), "accuracy": lambda t: t.last()}
    incorrect = {"metric": lambda t: t.mean("length_incorrect", 10), "curve": "length_incorrect"}
    return fair.compute(ARMS, PAIRS, seeds, WORLDS, **incorrect, **others)


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
    title = "Base model with filler text: length of incorrect responses"
    return fair.draw(result, title, "tokens of incorrect responses")
