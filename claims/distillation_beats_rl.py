"""A small model learns more from a teacher of its size that was trained for longer than from RL of its own.

Said by: DeepSeek-R1, 2501.12948, Sec. 4.1 ("distilling more powerful models into smaller ones yields excellent results,
whereas smaller models relying on the large-scale RL ... may not even achieve the performance of distillation");
on-policy distillation, Thinking Machines (2025).

Tested: methods/opd.py, on-policy distillation by the KL to a teacher at each token, and grpo.py, for 30 steps of 64
responses of the student with four updates each. The teacher is the same base model after 80 steps of grpo.py with seed
1: no larger than the student, so that only the kind of signal differs. Its own training is not counted.

Rule: by held-out accuracy, 95 % interval of the paired difference. Reproduced if the student gains 0.05 or more over RL
and the interval excludes 0; contradicted if the interval excludes such a gain; one that is certain but smaller is
inconclusive.

Not testable here: the teacher is no larger than the student, and ends only about 0.06 above the runs with RL: a gain of
0.05 would take nearly all of that.
"""

from statistics import mean

from claims.runs import compare, draw_arms, judged, summarize, trial

KIND = "runs"
SMALLEST = 0.05
TEACHER = "grpo --steps 80"


def compute(seeds):
    teacher = trial(TEACHER, 1)
    arms = {"RL": "grpo", "distilled": f"opd --teacher {teacher.weights}"}
    return compare(arms, [("RL", "distilled")], seeds) | {"teacher": teacher.last()}


def verdict(result):
    return judged(result, "RL → distilled", SMALLEST)


def effect(result):
    above = result["teacher"] - mean(result["arms"]["RL"]["values"])
    return f"{summarize(result)}; teacher {result['teacher']:.3f}, {above:+.3f} from RL"


def draw(result):
    return draw_arms(result, "On-policy distillation and RL at equal responses")
