"""Functions that a key draws: each solution passes its cases, and no script's function does."""

import ast
import re
from types import SimpleNamespace

from notebooks.exercises import grade, grade_class
from notebooks.exercises.answers import answers
from notebooks.exercises.exercises import SCRIPTS, defaults, functions, module
from notebooks.exercises.runner import run
from notebooks.exercises.sandbox import Sandbox
from notebooks.exercises.variants import KINDS, blank_variants, variant, variants
from notebooks.exercises.verdict import passed
from tools.scripts import call

import pytest
import torch

KEYS = [f"class {i}" for i in range(100)]


def public(made):
    """The scripts' functions of the variant's kind, adapted to its parameters, as modules with default settings."""
    for script in SCRIPTS:
        solution, settings = module(script), defaults(script)
        for name in (made.kind, "compute_advantages") if made.kind == "returns" else (made.kind,):
            if name in functions(script):
                for turned in {False, made.turned}:
                    yield SimpleNamespace(**{made.function: adapted(getattr(solution, name), made, turned, settings)})


def adapted(function, made, turned, settings):
    def turn(x):
        return x.T if turned and isinstance(x, torch.Tensor) and x.ndim == 2 else x

    def called(*inputs):
        values = dict(zip(made.roles, map(turn, inputs), strict=True))
        shape = next(iter(values.values())).shape
        spare = {"mask": torch.ones(shape, dtype=torch.bool), "ema": 0.5, "rewards": values.get("correct")}
        result = call(function, args=SimpleNamespace(**settings), **spare | values)
        if isinstance(result, tuple):  # a loss with its metrics, or advantages and returns
            result = result[0 if made.kind == "policy_loss" else 1]
        return turn(result)

    return called


@pytest.mark.parametrize("keys", [KEYS[:5], pytest.param(KEYS[5:], marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_solution_passes_and_no_public_function_does(kind, keys):
    for key in keys:
        made = variant(key, kind)
        known = answers(made, 3)
        assert passed(run(made.module(), made.function, known["cases"]), known)
        tried = [run(one, made.function, known["cases"]) for one in public(made)]
        assert any(all("outputs" in result for result in results) for results in tried), "none gives numbers"
        assert not [results for results in tried if passed(results, known)], key


@pytest.mark.parametrize("keys", [KEYS[:2], pytest.param(KEYS[2:], marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_that_is_drawn_counts(kind, keys):
    """Changing any number in a solution makes it fail."""
    for made in (variant(key, kind) for key in keys):
        known = answers(made, 3)
        for found in re.finditer(r"\d+\.\d+", made.text):
            text = made.text[: found.start()] + str(1.5 * float(found[0]) + 0.1) + made.text[found.end() :]
            assert not passed(run(made.module(text), made.function, known["cases"]), known), text


def test_a_key_draws_the_same_functions_again():
    assert variants("one") == variants("one") and variants("one") != variants("other")
    drawn = [variant(key, kind) for key in KEYS for kind in KINDS]
    assert len({made.text for made in drawn}) > 500, "few different functions"
    assert len({made.function for made in drawn}) == 4 * len(KINDS)


def test_the_handout_of_a_key_has_words_and_no_code():
    """The handout has the solution's names, shapes and constants, but none of its lines."""
    for key in KEYS:
        text, made = blank_variants(key), variants(key)
        assert max(map(len, text.splitlines())) <= 120 and text.count("yours to write") == len(KINDS)
        drawn = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
        for one in made:
            solution, words = ast.parse(one.text).body[0], " ".join(ast.get_docstring(drawn[one.function]).split())
            assert ast.dump(solution.args) == ast.dump(drawn[one.function].args)
            assert not [line for line in one.text.splitlines()[1:] if len(line.split()) > 2 and line.strip() in text]
            constants = [n.value for n in ast.walk(solution) if isinstance(n, ast.Constant)]
            said = {float(number) for number in re.findall(r"\d+\.\d+", words)}
            assert {x for x in constants if isinstance(x, float)} <= said
            assert key not in text


def test_grading_with_a_key(tmp_path):
    """Only this key's functions earn points, not another key's."""
    made = variants("secret")
    head = "import torch\nfrom torch import Tensor\n\n"
    (tmp_path / "variants.py").write_text(head + "\n\n".join(one.text for one in made))
    with Sandbox() as sandbox:
        marks = grade.grade(tmp_path, sandbox, 5, "secret")
        assert [(mark.file, mark.name, mark.points, mark.reason) for mark in marks] == [
            ("variants.py", one.function, one.level, "") for one in made
        ]
        assert not any(mark.points for mark in grade.grade(tmp_path, sandbox, 5, "another secret"))
        (tmp_path / "variants.py").write_text(blank_variants("secret"))
        assert {mark.reason for mark in grade.grade(tmp_path, sandbox, 5, "secret")} == {"it is not written yet."}


def test_the_key_decides_what_is_graded_again_and_is_not_in_the_record(tmp_path, monkeypatch):
    (tmp_path / "class" / "ann").mkdir(parents=True)
    (tmp_path / "class" / "ann" / "variants.py").write_text(blank_variants("k3y"))
    for key in ("k3y", "other"):
        grade_class.main(grade_class.Args(tmp_path / "class", out=tmp_path / "marks", key=key, seed=1, jobs=1))
        names = [one.function for one in variants(key)]
        record = (tmp_path / "marks" / "marks.json").read_text()
        assert all(f'"name": "{name}"' in record for name in names) and '"bug"' not in record
        assert not [path for path in (tmp_path / "marks").rglob("*") if path.is_file() and "k3y" in path.read_text()]
