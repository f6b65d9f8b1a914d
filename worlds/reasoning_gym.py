"""Tasks of the package reasoning-gym by name, each with its own scorer. The package is optional.

pip install reasoning-gym==0.1.25
python grpo.py --model ... --dataset reasoning-gym:spell_backward
"""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from common.cli import fail

HELD_OUT, TRAINING = 256, 2048  # questions; some tasks have fewer different ones, and some take a second for each
WORKER = Path(__file__).with_name("gym_worker.py")


@dataclass(frozen=True)
class GymAnswer:
    """An answer that the task's own scorer compares, with a score from 0 to 1; `entry` is the problem, packed."""

    task: str
    answer: str
    entry: str

    def __str__(self) -> str:
        return self.answer


@cache
def gym_problems(name: str) -> tuple[list[tuple[str, GymAnswer]], list[tuple[str, GymAnswer]]]:
    """Training and held-out (question, answer) pairs of `reasoning-gym:TASK`, disjoint and always the same.

    They are made in another process: a few tasks go through sets, whose order is that process's alone to fix.
    """
    if importlib.util.find_spec("reasoning_gym") is None:
        fail(f"--dataset {name} needs another package: pip install reasoning-gym==0.1.25.")
    task = name.partition(":")[2]
    print(f"generating {TRAINING + HELD_OUT} problems of {name}", flush=True)
    made = subprocess.run(
        [sys.executable, "-P", str(WORKER), task, str(TRAINING + HELD_OUT)],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        reason = (made.stderr.strip().splitlines() or [f"its process has ended with code {made.returncode}"])[-1]
        fail(f"--dataset {name} cannot be generated: {reason}")
    pairs = [(question, GymAnswer(task, answer, entry)) for question, answer, entry in json.loads(made.stdout)]
    return pairs[HELD_OUT:], pairs[:HELD_OUT]
