"""The checks of the exercises: `pytest` in this folder says of each function what is wrong with it, and why.

    pytest                      # all
    pytest -k level1            # the first level; also: -k grpo, -k policy_loss

There is no solution here. `answers.json` holds, for each function, some inputs, what comes out of the right function,
and what comes out of functions with a known mistake: so the check can name the mistake. Your grade does not come from
this file: the grader has other inputs, other shapes and other settings.
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
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def check(name: str) -> str | None:
    """What is wrong with an exercise, named script.function, or None."""
    answers = json.loads(ANSWERS.read_text())[name]
    script, function = name.split(".")
    return verdict(run(load(HERE / f"{script}.py"), function, answers["cases"]), answers)


def exercises() -> list[tuple[str, str]]:
    """(level, name) of everything to be written, as far as the files are here."""
    answers = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    found = [
        (f"level{answers[name]['level']}", name) for name in answers if (HERE / f"{name.split('.')[0]}.py").exists()
    ]
    return sorted(found, key=lambda pair: pair[0])


@pytest.mark.parametrize("level,name", exercises())
def test_exercise(level: str, name: str) -> None:
    if problem := check(name):
        pytest.fail(f"{name.replace('.', '.py, ')}: {problem}", pytrace=False)
