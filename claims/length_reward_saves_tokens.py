"""A reward for short answers saves tokens at no loss of accuracy.

Said by: Kimi k1.5, 2501.12599, Sec. 2.3.3 ("we introduce a length reward to restrain the rapid growth of token length,
thereby improving the model's token efficiency"; it may slow down early learning, so the paper enables it later). L1,
2503.04697, claims it for its budgets, which the model of sums cannot read.

Tested: grpo.py and methods/kimi_length.py, with its length reward from the first step, for 30 steps of 64 responses.
Working step by step takes more tokens than guessing but is correct more often, so the shortest correct answers are not
the most reliable. Mean length over the last 10 steps; held-out accuracy is reported and is part of the rule.

Rule: on paired seeds. Reproduced if responses are shorter by 2 tokens or more, the 95 % interval excludes 0, and the
interval of the accuracies excludes a loss of 0.03; contradicted if the interval of the lengths includes 0 and excludes
2 tokens, or accuracy is lower by 0.03 or more and its interval excludes 0; a certain saving of less than 2 tokens is
inconclusive.
"""

from claims.court import judge_all
from claims.runs import compare, draw_arms, judged, judged_lossless, summarize

KIND = "runs"
SMALLEST = 2
ARMS = {"no length reward": "grpo", "Kimi's": "kimi_length"}
PAIR = "no length reward → Kimi's"


def compute(seeds):
    lengths = compare(ARMS, [tuple(ARMS)], seeds, lambda t: t.mean("length", 10), "length")
    return lengths | {"accuracy": compare(ARMS, [tuple(ARMS)], seeds)}


def verdict(result):
    return judge_all(judged(result, PAIR, SMALLEST, sign=-1), judged_lossless(result["accuracy"], PAIR, smallest=0.03))


def deciding(result):
    """What the verdict depends on beside the difference."""
    mean, half, _ = result["accuracy"]["differences"][PAIR]
    return f"accuracy {mean:+.3f} ± {half:.3f}"


def effect(result):
    return f"{summarize(result, 'tokens per response', '.1f')}; {summarize(result['accuracy'])}"


def draw(result):
    return draw_arms(result, "A reward for short answers: length", "tokens per response", "tokens, last 10 steps")
