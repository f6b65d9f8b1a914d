"""The checks of the exercises: they pass on the solution, and name the mistake in every wrong one."""

import ast
import subprocess
import sys
from pathlib import Path

from notebooks.exercises import make, silent_bugs
from notebooks.exercises.check import verdict
from notebooks.exercises.mistakes import MISTAKES

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def answers():
    return {name: make.answers(name) for name in make.SCRIPTS}


@pytest.mark.parametrize("name", make.SCRIPTS)
@pytest.mark.parametrize("function", make.FUNCTIONS)
def test_the_solution_passes(name, function, answers):
    assert (function in answers[name]) == (name != "dppo" or function != "tis_weight")
    if function not in answers[name]:
        return
    assert verdict(make.module(make.source(name), "solution"), function, answers[name][function]) is None


@pytest.mark.parametrize("name,function,line,wrong_line,message", MISTAKES)
def test_every_mistake_is_named(name, function, line, wrong_line, message, answers):
    wrong = make.module(make.mistaken(name, function, line, wrong_line), "mistake")
    assert verdict(wrong, function, answers[name][function]) == message


def test_mistakes_differ_from_one_another(answers):
    """Otherwise one message would stand for the other's mistake."""
    for name, functions in answers.items():
        for function, record in functions.items():
            outputs = [str(m["outputs"]) for m in record["mistakes"]] + [str(record["right"])]
            assert len(set(outputs)) == len(outputs), f"{name}.py, {function}"


def written(name, function, body):
    """The handout of a script with one function written by a student."""
    text = make.blank(name)
    node = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == function)
    lines = text.splitlines()
    return "\n".join([*lines[: node.end_lineno - 1], *(f"    {line}" for line in body), *lines[node.end_lineno :]])


@pytest.mark.parametrize(
    "name,function,body,words",
    [
        # other ways to write the same, which must pass
        (
            "rloo",
            "compute_advantages",
            ["G = rewards.shape[1]", "return G / (G - 1) * (rewards - rewards.mean(1, keepdim=True))"],
            None,
        ),
        (
            "grpo",
            "policy_loss",
            [
                "r = torch.exp(logp - old_logp)",
                "gone = ((advantages > 0) & (r > 1.2)) | ((advantages < 0) & (r < 0.8))",
                "return -(r.detach() * advantages * logp) * ~gone, {}",
            ],
            None,
        ),
        # and what no list of mistakes foresees
        ("grpo", "token_weights", ["return mask * 3.0"], "should be"),
        ("grpo", "token_weights", ["return mask.sum(1)"], "the shape (4,), not (4, 7)"),
        ("grpo", "token_weights", ["return mask / 0"], "not finite"),
        ("grpo", "token_weights", ["return mask / nothing"], "NameError"),
        ("grpo", "token_weights", ['raise NotImplementedError("yours to write")'], "not written yet"),
    ],
)
def test_students_own_ways(name, function, body, words, answers):
    result = verdict(make.module(written(name, function, body), "student"), function, answers[name][function])
    assert result is None if words is None else words in result


def test_the_handout(tmp_path):
    """The command makes a folder that stands alone and holds no solution; pytest there says what is wrong."""
    command = [sys.executable, "-m", "notebooks.exercises.make", str(tmp_path / "handout"), "grpo", "dr_grpo"]
    assert subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0
    for name in ("grpo", "dr_grpo"):
        text = (tmp_path / "handout" / f"{name}.py").read_text()
        assert text.count("NotImplementedError") == 4 and "torch.min" not in text and "def main" not in text
    wrong = written("dr_grpo", "token_weights", ["return mask / (len(mask) * mask.sum(1, keepdim=True))"])
    (tmp_path / "handout" / "dr_grpo.py").write_text(wrong)
    (tmp_path / "handout" / "grpo.py").write_text((ROOT / "grpo.py").read_text())  # the solution
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}  # the solution's own imports
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    result = subprocess.run(pytest_command, cwd=tmp_path / "handout", capture_output=True, text=True, env=environment)
    assert "your loss still depends on response length: this is GRPO's, not Dr. GRPO's" in result.stdout
    assert "4 passed" in result.stdout and "4 failed" in result.stdout
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 2 and "nothing is overwritten" in again.stderr


@pytest.mark.parametrize("name", silent_bugs.NAMES)
def test_bugs_are_confirmed_by_name(name):
    """Each name fits exactly one run; no other name is accepted for it."""
    letters = [letter for letter in "ABCDEFG" if silent_bugs.name_bug(letter, name).startswith("Yes")]
    assert len(letters) == 1
    others = [other for other in silent_bugs.NAMES if other != name]
    assert all(silent_bugs.name_bug(letters[0], other).startswith("No.") for other in others)


def test_bug_hints():
    assert "none of the bugs" in silent_bugs.name_bug("A", "gremlins")
    assert "there is no bug" in silent_bugs.name_bug("Z", "top-p")
