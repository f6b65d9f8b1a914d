"""A reward for short answers saves tokens at no loss of accuracy.

Said by: Kimi k1.5, 2501.12599, Sec. 2.3.3 ("we introduce a length reward to restrain the rapid growth of token length,
thereby improving the model's token efficiency"; it may slow down early learning, so the paper enables it later). L1,
2503.04697, claims it for its budgets, which the model of sums cannot read.

Tested: grpo.py and methods/kimi_length.py, with its length reward from the first step, on sums for 30 steps of 64
responses; a fair trial (claims/fair.py). Working step by step takes more tokens than guessing but is correct more
often, so the shortest correct answers are not the most reliable. Mean length over the last 10 steps; held-out accuracy
is reported and is part of the rule. Each arm has the learning rate that is best for accuracy; where these differ, that
may change lengths too.

Rule: reproduced if responses are shorter by 2 tokens or more, the 95 % interval excludes 0, and the interval of the
accuracies excludes a loss of 0.03; contradicted if the interval of the lengths excludes a saving of 2 tokens and does
not lie below 0, or accuracy is lower by 0.03 or more and its interval excludes 0; a certain saving of less than 2
tokens is inconclusive.
"""

from claims import fair
from claims.court import judge_all
from claims.runs import summarize

KIND = "runs"
SMALLEST = 2
WORLDS = ("sums",)
ARMS = {"no length reward": "grpo", "Kimi's": "kimi_length"}
PAIR = ("no length reward", "Kimi's")


def compute(seeds):
    lengths = fair.compute(ARMS, [PAIR], seeds, WORLDS, metric=lambda t: t.mean("length", 10))
    return lengths | {"accuracy": fair.compute(ARMS, [PAIR], seeds, WORLDS)}


def verdict(result):
    shorter = fair.in_each_world(result, PAIR, SMALLEST, sign=-1)
    as_accurate = fair.in_each_world(result["accuracy"], PAIR, smallest=0.03, lossless=True)
    return judge_all(*shorter.values(), *as_accurate.values())


def effect(result):
    lengths = fair.effect(result, {"sums": verdict(result)}, "tokens per response", ".1f")
    return f"{lengths}; {summarize(result['accuracy'])}"


def draw(result):
    return fair.draw(result, "A reward for short answers: length", "tokens, last 10 steps")
