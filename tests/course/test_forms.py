"""Every function is accepted in at least thirteen correct forms, whatever the seed of the cases."""

from notebooks.exercises.answers import CASES, NOT_FOR_THE_RUNNER
from notebooks.exercises.cases import cases
from notebooks.exercises.exercises import BY_NAME
from notebooks.exercises.runner import run
from notebooks.exercises.verdict import difference, passed

import pytest
from forms import exercise_of, forms

LOOPS = ("loop.train", "loop.changed")


@pytest.mark.parametrize("name", BY_NAME)
def test_thirteen_forms_of_every_function(name):
    assert len(list(forms(name))) >= 13


@pytest.mark.parametrize(
    ("name", "seeds"),
    [(name, [1]) for name in BY_NAME if name not in LOOPS]
    + [pytest.param(name, range(4 if name in LOOPS else 100), marks=pytest.mark.slow) for name in BY_NAME],
)
def test_every_form_passes(name, seeds):
    exercise = exercise_of(name)
    made = [(title, exercise.module(source)) for title, source in forms(name)]
    for seed in seeds:
        given = list(CASES.get(exercise.script, cases)(exercise, seed))
        given = [{k: v for k, v in case.items() if k not in NOT_FOR_THE_RUNNER} for case in given]
        known = {"cases": given, "right": run(exercise.module(), exercise.function, given)}
        what = {"what": [str(i) for i in range(len(known["right"][0]["outputs"]))]}
        for title, module in made:
            results = run(module, exercise.function, given)
            problems = [result["problem"] for result in results if "problem" in result]
            assert passed(results, known), (title, seed, problems or difference(results, known | what))
