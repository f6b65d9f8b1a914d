"""GRPO's mean over each response makes incorrect answers longer than dividing by a constant does.

Said by: Dr. GRPO, 2503.20783, Abstract ("an optimization bias in Group Relative Policy Optimization (GRPO), which
artificially increases response length (especially for incorrect outputs) during training") and Sec. 3. There the mean
and the std were removed together.

Tested: a 2 x 2 design on the base model with filler text (in the default model, guessing or working decides the
length): advantages with and without std; a response's loss as a mean or divided by a constant. grpo.py and dr_grpo.py
are two of the four; the others exchange one function. Mean length of incorrect responses over the last 10 of 30 steps.

Rule: 95 % interval of the paired difference, with std. Reproduced if incorrect responses are longer with the mean than
with the constant by 2 tokens or more and the interval excludes 0; contradicted if the interval excludes such a
difference; one that is certain but smaller is inconclusive. The lengths of correct responses and held-out accuracies
are reported.
"""

from claims.runs import compare, draw_arms, judged, summarize

KIND = "runs"
SMALLEST = 2
BASE = "--model sums-filler"
ARMS = {
    "std, constant": f"grpo+dr_grpo.token_weights {BASE}",
    "std, mean": f"grpo {BASE}",
    "no std, constant": f"dr_grpo {BASE}",
    "no std, mean": f"grpo+dr_grpo.compute_advantages {BASE}",
}


def compute(seeds):
    pairs = [("std, constant", "std, mean"), ("no std, constant", "no std, mean")]
    others = {"right": lambda t: t.mean("length_correct", 10), "accuracy": lambda t: t.last()}
    return compare(ARMS, pairs, seeds, lambda t: t.mean("length_incorrect", 10), "length_incorrect", **others)


def verdict(result):
    return judged(result, "std, constant → std, mean", SMALLEST)


def effect(result):
    right, accuracy = (", ".join(f"{arm[key]:.3g}" for arm in result["arms"].values()) for key in ("right", "accuracy"))
    return f"{summarize(result, 'tokens of incorrect responses', '.1f')}; of correct ones {right}; accuracy {accuracy}"


def draw(result):
    return draw_arms(
        result, "Base model with filler text: length of incorrect responses", "tokens", "tokens of incorrect responses"
    )
