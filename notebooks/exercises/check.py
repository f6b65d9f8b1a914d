"""Checks of the exercises: `pytest` in this folder says what is wrong with each function, and why.

    pytest                      # all
    pytest -k level1            # the first level; also: -k grpo, -k policy_loss

This folder holds no solutions. For each function `answers.json` holds some inputs, the correct results, and the results
of known mistakes, so that the check can name a mistake. The grader runs your functions as this check does, in a sandbox
without files (on Linux), with other inputs, shapes and settings. Your files may import each other, torch, NumPy and
common modules of the standard library; a message names them if you import another.
"""

import atexit
import json
from functools import cache
from pathlib import Path
from typing import Any

from notebooks.exercises.files import Unusable, choice, sources
from notebooks.exercises.sandbox import Sandbox
from notebooks.exercises.verdict import verdict

import pytest

HERE = Path(__file__).parent
ANSWERS = HERE / "answers.json"


@cache
def sandbox() -> Sandbox:
    made = Sandbox().__enter__()
    atexit.register(made.__exit__, None)
    return made


def results(name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What the function of the exercise `script.function` returns for its cases in answers.json, and its answers."""
    everything = json.loads(ANSWERS.read_text())
    script, function = name.split(".")
    answers = everything[name]
    methods = answers.get("methods", {})
    try:
        files = sources(HERE, {one.split(".")[0] for one in everything}, script)
        answers = methods[choice(files[script], methods)] if methods else answers
    except Unusable as problem:
        return [{"problem": str(problem)}], {"right": [], "cases": [], "settings": [], "varied": []}
    return sandbox().run(files, script, function, answers["cases"]), answers


def check(name: str) -> str | None:
    """What is wrong with the exercise `script.function`, or None."""
    return verdict(*results(name))


def fits(name: str) -> bool:
    """Whether the function returns numbers in the correct shapes, so that a loop can call it."""
    found, answers = results(name)
    return bool(answers["right"]) and shapes(found) == shapes(answers["right"])


def shapes(found: list[dict[str, Any]]) -> list[list[list[int]]]:
    return [[output["shape"] for output in result.get("outputs", [])] for result in found]


def exercises() -> list[tuple[str, str]]:
    """Level and name of each exercise that has a file in this folder."""
    answers = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    found = [
        (f"level{answers[name]['level']}", name) for name in answers if (HERE / f"{name.split('.')[0]}.py").exists()
    ]
    return sorted(found, key=lambda pair: pair[0])


@pytest.mark.parametrize("level,name", exercises())
def test_exercise(level: str, name: str) -> None:
    if problem := check(name):
        pytest.fail(f"{name.replace('.', '.py, ')}: {problem}", pytrace=False)
