"""Solutions of the exercises, whole or changed, and the handout's verdict on them."""

import ast
import re
from dataclasses import replace
from functools import cache

from notebooks.exercises import make
from notebooks.exercises.answers import CASES, HANDOUT_SEED, for_the_runner
from notebooks.exercises.answers import answers as make_answers
from notebooks.exercises.cases import cases
from notebooks.exercises.exercises import BY_NAME, functions, solution_path
from notebooks.exercises.runner import run
from notebooks.exercises.verdict import numbers, verdict

HEAD = "import torch\nfrom torch import Tensor\n"  # starts a student's file
NAMES = [name for name in BY_NAME if name != "loop.changed"]  # its answers depend on the method


@cache
def answers(name):
    return make_answers(BY_NAME[name], HANDOUT_SEED)


def right_results(exercise, seed):
    """A seed's cases with their correct results, without those of known mistakes, which take most of the time."""
    given = [*map(for_the_runner, CASES.get(exercise.script, cases)(exercise, seed))]
    right = run(exercise.module(), exercise.function, given)
    assert all(numbers(output).isfinite().all() for result in right for output in result["outputs"]), exercise.name
    return given, right


def judged(name, made):
    """The handout's verdict on a module with the exercise's function."""
    return verdict(run(made, BY_NAME[name].function, answers(name)["cases"]), answers(name))


def changed(name, old, new):
    """The solution with part of the exercise's function replaced."""
    source = BY_NAME[name].source
    assert old in source
    return BY_NAME[name].module(source.replace(old, new))


def written(name, body):
    """The handout's file with one function filled in."""
    exercise = BY_NAME[name]
    text = make.blank_loop() if exercise.script == "loop" else make.blank(exercise.script)
    node = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == exercise.function)
    lines = text.splitlines()
    head, tail = lines[: node.body[-1].lineno - 1], lines[node.end_lineno :]
    return "\n".join([*head, *(f"    {line}" for line in body.splitlines()), *tail]) + "\n"


def solve(folder, scripts):
    """Write the solutions into the files of these scripts."""
    head = "from __future__ import annotations\nimport torch\nfrom torch import Tensor\n\n"
    for script in set(scripts) - {"loop"}:
        (folder / f"{script}.py").write_text(head + "\n\n".join(functions(script).values()) + "\n")
    if "loop" in scripts:
        (folder / "loop.py").write_text(solved_loop("dr_grpo"))


def solved_loop(method):
    """loop.py with solutions; `changed` trains this method with the functions in the student's file for it."""
    text = solution_path("loop").read_text().split("def changed")[0]
    source = replace(BY_NAME["loop.changed"], method=method).source
    source = re.sub(r"\b(compute_advantages|token_weights|policy_loss|tis_weight)\(", rf"{method}.\1(", source)
    text = text.replace('CHANGE = ""', f'CHANGE = "{method}"').replace("import re\n", f"import re\n\nimport {method}\n")
    return text + source + "\n"
