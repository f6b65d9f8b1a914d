"""Habits of search in the base model, not right answers, decide what reinforcement learning gains.

Said by: "Cognitive Behaviors that Enable Self-Improving Reasoners", 2503.01307 (Abstract: "the presence of reasoning
behaviors, rather than correctness of answers, proves to be the critical factor").

Tested: four base models of the world of search, pretrained alike on solutions by writers who only guess, who try once,
who go on after a failure, and who do so but always box a wrong answer (worlds/search/habits.py). Then grpo.py for 40
steps of 64 responses, each at its best learning rate of three (--sweep). Held-out accuracy after the last step. The
sweep, on two seeds that the verdict does not use, gave 0.130, 0.126 and 0.120 at 3e-5, 1e-4 and 3e-4 for those who
guess; 0.171, 0.178 and 0.182 for those who try once; 0.145, 0.141 and 0.104 for wrong answers; 0.800, 0.852 and 0.248
for all habits.

Rule: 95 % intervals of the paired differences. Reproduced if both models that go on after a failure end higher than
both others by 0.2 or more, with all four intervals above 0; contradicted if one interval excludes a gain of 0.2.
"""

from claims.court import chance, judge_all
from claims.runs import SEARCH, compare, draw_arms, judged, summarize

KIND = "runs"
SMALLEST = 0.2
ARMS = {
    "guess": f"grpo {SEARCH} --model runs/habits/guess --lr 3e-5",
    "try once": f"grpo {SEARCH} --model runs/habits/try-once --lr 3e-4",
    "wrong answers": f"grpo {SEARCH} --model runs/habits/wrong-answers --lr 3e-5",
    "all habits": f"grpo {SEARCH} --model search --lr 1e-4",
}
PAIRS = [(without, habits) for habits in ("wrong answers", "all habits") for without in ("guess", "try once")]


def compute(seeds):
    before = {"before": lambda t: t.rows[0]["eval/avg"]}
    return compare(ARMS, [*PAIRS, ("wrong answers", "all habits")], seeds, **before)


def verdict(result):
    return judge_all(*(judged(result, f"{a} → {b}", SMALLEST) for a, b in PAIRS))


def effect(result):
    before = ", ".join(f"{arm['before']:.3f}" for arm in result["arms"].values())
    return f"{summarize(result)}; before training {before}; random expressions {chance('search'):.3f}"


def draw(result):
    return draw_arms(result, "Four base models with different habits, then the same GRPO")
