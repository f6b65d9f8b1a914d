"""Adapter for the tasks of the package reasoning-gym, each with its own scorer. The package is optional.

    pip install reasoning-gym==0.1.25
    python grpo.py --model ... --dataset reasoning-gym:spell_backward

Only other processes import the package: `problems` runs this file as a program, and the verifier calls `score` in a
worker. So this file imports nothing else from the repository when it loads.
"""

import base64
import difflib
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

HELD_OUT, TRAINING = 256, 2048  # questions; some tasks have fewer different ones, and some take a second for each


@cache
def problems(task: str) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Training and held-out (question, ScoredAnswer) pairs of a task, disjoint and always the same."""
    from common.cli import fail, say
    from common.records import ScoredAnswer

    name = f"--dataset reasoning-gym:{task}"
    if importlib.util.find_spec("reasoning_gym") is None:
        fail(f"{name} needs another package: pip install reasoning-gym==0.1.25.")
    say(f"generating {TRAINING + HELD_OUT} problems of reasoning-gym:{task}")
    made = subprocess.run(
        [sys.executable, "-P", __file__, task],
        env=os.environ | {"PYTHONHASHSEED": "0"},  # a few tasks loop over sets, whose order depends on this
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        reason = (made.stderr.strip().splitlines() or [f"its process ended with code {made.returncode}"])[-1]
        fail(f"{name} cannot be generated: {reason}")
    scorer = f"{os.path.abspath(__file__)}:score"
    pairs = [(question, ScoredAnswer(answer, scorer, entry)) for question, answer, entry in json.loads(made.stdout)]
    return pairs[HELD_OUT:], pairs[:HELD_OUT]


def generate(task: str) -> list[tuple[str, str, str]]:
    """Question, answer and packed entry of a task's problems, without repeated questions.

    The package makes an entry from the sum of the seed and the entry's number, so neighboring seeds have almost all
    entries in common: training and held-out problems come from one seed.
    """
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        near = difflib.get_close_matches(task, DATASETS, 3) or sorted(DATASETS)
        sys.exit(f"there is no task '{task}', but {', '.join(near)}.")
    found: dict[str, dict[str, Any]] = {}
    for entry in reasoning_gym.create_dataset(task, size=TRAINING + HELD_OUT, seed=2026):
        found.setdefault(entry["question"], entry)
    # Pickled, because JSON would turn tuples into lists.
    packed = [base64.b64encode(pickle.dumps((task, entry))).decode() for entry in found.values()]
    return [(q, str(entry["answer"]), text) for (q, entry), text in zip(found.items(), packed, strict=True)]


@cache
def scorer_of(task: str) -> Any:
    import reasoning_gym

    return reasoning_gym.get_score_answer_fn(task)


def score(problem: SimpleNamespace, text: str, tokens: list[int], truncated: bool) -> float:
    """The score, from 0 to 1, that the task's scorer gives for an answer."""
    task, entry = pickle.loads(base64.b64decode(problem.payload))
    return scorer_of(task)(text, entry)


if __name__ == "__main__":
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # for what tasks print
    print(json.dumps(generate(sys.argv[1])), file=pipe)
