"""Results of correct functions and of known mistakes on some cases, for `verdict.verdict` to compare with.

The handout gets the answers of one seed. The grader makes new ones for each submission and never shows them.
"""

import ast
import math
from functools import cache
from threading import Lock
from typing import Any

from notebooks.exercises.cases import cases
from notebooks.exercises.exercises import BY_NAME, EXERCISES, Exercise, code, functions, parameters
from notebooks.exercises.loop_cases import loop_cases
from notebooks.exercises.mistakes import MISTAKES, WHAT
from notebooks.exercises.runner import GRADIENT, run
from notebooks.exercises.variants import variant_cases
from notebooks.exercises.verdict import equal
from tools.scripts import ROOT, parse

HANDOUT_SEED = 7
ONE_THREAD = Lock()
CASES = {"loop": loop_cases, "variants": variant_cases}  # for the files that are not scripts
NOT_FOR_THE_RUNNER = ("setting", "varied")
OFTEN = {"mask", "args"}  # only some methods' functions have these parameters


def title(script: str) -> str:
    """The method's short name, from its script's docstring."""
    doc = ast.get_docstring(parse((ROOT / f"{script}.py").read_text()))
    return doc.split(":")[0].split(",")[0]


def wrong_sources(exercise: Exercise) -> list[tuple[str, str]]:
    """(message, source) of each listed mistake, and of each other method's function of the same name."""
    right = exercise.source
    found = []
    for name, line, wrong_line, message in MISTAKES:
        if name == exercise.name:
            assert line in right, f"{name} has no line {line!r}"
            found.append((message, right.replace(line, wrong_line)))
    for other in EXERCISES:
        source = functions(other.script)[other.function]
        alike = other.function == exercise.function and set(parameters(source)) ^ set(parameters(right)) <= OFTEN
        if alike and other.name in WHAT and code(source) != code(right):
            found.append((f"this is {title(other.script)}'s: {WHAT[other.name]}.", with_head_of(right, source)))
    return found


def with_head_of(right: str, source: str) -> str:
    """A function's body with the name and parameters of another function."""
    node = parse(source).body[0]
    node.args = parse(right).body[0].args
    return ast.unparse(node)


def answers(exercise: Exercise, seed: int) -> dict[str, Any]:
    """`make_answers`, one thread at a time, because loops draw from torch's random numbers, which threads share."""
    with ONE_THREAD:
        return make_answers(exercise, seed)


@cache
def make_answers(exercise: Exercise, seed: int) -> dict[str, Any]:
    """The runner's `cases`, the `right` results, the `mistakes` with their results, what each case varies, and the
    result if the first setting that it changes is `ignored`."""
    made = list(CASES.get(exercise.script, cases)(exercise, seed))
    given = [for_the_runner(case) for case in made]
    right = run(exercise.module(), exercise.function, given)
    values = [x for result in right for output in result["outputs"] for x in output["values"]]
    assert all(map(math.isfinite, values)), f"{exercise.name}: the correct results are not finite"
    what = ["the value"] * len(right[0]["outputs"])
    if exercise.kind in GRADIENT:
        what[-1] = "the gradient of the loss"
    if "world" in given[0]:
        updates = range(1, 1 + len(right[0]["outputs"]) // len(given[0]["world"]))
        what = [f"the gradient of `{name}` in update {number}" for number in updates for name in given[0]["world"]]
        what.append("the mean reward")
    return {
        "level": exercise.level,
        "what": what,
        "cases": given,
        "right": right,
        "mistakes": mistakes(exercise, given, right),
        "ignored": [ignored(exercise, case) for case in made],
        "settings": [case["setting"] for case in made],
        "varied": [case["varied"] for case in made],
    }


def for_the_runner(case: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in case.items() if k not in NOT_FOR_THE_RUNNER}


def ignored(exercise: Exercise, case: dict[str, Any]) -> dict[str, Any] | None:
    """The result with the default of the first setting that a case changes, or None if it changes none."""
    for name in case["setting"]:
        as_default = for_the_runner(case) | {"args": case["args"] | {name: exercise.settings[name]}}
        return run(exercise.module(), exercise.function, [as_default])[0]
    return None


def mistakes(exercise: Exercise, given: list[dict[str, Any]], right: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each known mistake's message and results. If several have the same results, only the first is kept."""
    sources = wrong_sources(exercise)
    wrong = [(m, run(exercise.module(s), exercise.function, given)) for m, s in sources]
    if exercise.method:
        message = f"it still trains {title('grpo')}: CHANGE names {title(exercise.method)}."
        wrong.append((message, run(BY_NAME["loop.train"].module(), "train", given)))
    unmasked = [case | {"inputs": [ones(x) for x in case["inputs"]]} for case in given]
    if exercise.kind != "token_weights" and unmasked != given:
        results = run(exercise.module(), exercise.function, unmasked)
        wrong.append(("the mask is ignored: values on padding change the result.", results))
    found: list[dict[str, Any]] = []
    for message, results in wrong:
        if any("problem" in result for result in results):  # the check reports it unchanged
            continue
        known = [right, *(m["results"] for m in found)]
        if not any(all(map(equal, results, others)) for others in known):
            found.append({"message": message, "results": results})
    return found


def ones(value: Any) -> Any:
    """A mask without padding; other values unchanged."""
    if isinstance(value, dict) and "bool" in value:
        return {"bool": [[True] * len(row) for row in value["bool"]]}
    return value
