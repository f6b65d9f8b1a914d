"""Checks of the exercises: `pytest` in this folder says what is wrong with each function, and why.

    pytest                      # all
    pytest -k level1            # the first level; also: -k grpo, -k policy_loss

This folder holds no solutions. For each function `answers.json` holds some inputs, the correct results, and the results
of known mistakes, so that the check can name a mistake. Grading does not use this file: the grader has other inputs,
shapes and settings.
"""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

from notebooks.exercises.runner import run
from notebooks.exercises.verdict import verdict

import pytest

HERE = Path(__file__).parent
ANSWERS = HERE / "answers.json"


def load(path: Path) -> ModuleType:
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def check(name: str) -> str | None:
    """What is wrong with the exercise `script.function`, or None."""
    answers = json.loads(ANSWERS.read_text())[name]
    script, function = name.split(".")
    return verdict(run(load(HERE / f"{script}.py"), function, answers["cases"]), answers)


def exercises() -> list[tuple[str, str]]:
    """(level, name) of every exercise whose file is here."""
    answers = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    found = [
        (f"level{answers[name]['level']}", name) for name in answers if (HERE / f"{name.split('.')[0]}.py").exists()
    ]
    return sorted(found, key=lambda pair: pair[0])


@pytest.mark.parametrize("level,name", exercises())
def test_exercise(level: str, name: str) -> None:
    if problem := check(name):
        pytest.fail(f"{name.replace('.', '.py, ')}: {problem}", pytrace=False)
