"""What runs reasoning-gym: the problems of a task are made, and answers scored, in processes of their own.

Some scorers evaluate the answer (as an expression or a program), which may raise, take for ever, or fill the memory; so
they run as a reward function does (common/verification/rewards.py).
"""

import base64
import difflib
import json
import os
import pickle
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS


def problems(task: str, count: int) -> list[tuple[str, str, str]]:
    """Question, answer and packed entry of `count` problems, less those whose question has been asked before.

    An entry is made from the sum of a seed and its number, so two seeds next to each other have almost all entries in
    common: training and held-out problems come from one seed.
    """
    if task not in DATASETS:
        near = difflib.get_close_matches(task, DATASETS, 3) or sorted(DATASETS)
        sys.exit(f"there is no task '{task}', but {', '.join(near)}.")
    found: dict[str, dict[str, Any]] = {}
    for entry in reasoning_gym.create_dataset(task, size=count, seed=2026):
        found.setdefault(entry["question"], entry)
    # Not as JSON, which would turn tuples into lists.
    packed = [base64.b64encode(pickle.dumps(entry)).decode() for entry in found.values()]
    return [(q, str(entry["answer"]), text) for (q, entry), text in zip(found.items(), packed, strict=True)]


@cache
def scorer(task: str) -> Any:
    return reasoning_gym.get_score_answer_fn(task)


def score(problem: SimpleNamespace, text: str, tokens: list[int], truncated: bool) -> float:
    """What the task's scorer gives for an answer, between 0 and 1."""
    return scorer(problem.task)(text, pickle.loads(base64.b64decode(problem.entry)))


if __name__ == "__main__":
    made = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tasks print
    print(json.dumps(problems(sys.argv[1], int(sys.argv[2]))), file=made)
