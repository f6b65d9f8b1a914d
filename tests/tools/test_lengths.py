"""What people read stays short: functions, files, scripts, and a method's changes to its parent."""

import ast
import difflib

from tools.compare import code
from tools.scripts import ROOT, parents, script_path

import pytest

FILES = {
    path.relative_to(ROOT): path.read_text()
    for path in sorted(ROOT.rglob("*.py"))
    if not {"runs", "site-packages"} & {*path.parts} and not any(part.startswith(".") for part in path.parts)
}
LONG = ("recipes/r1.py",)  # a run with several stages
LONG_SCRIPTS = ("vapo", "process_rewards", "scalerl", "r1")  # these have a critic or a reward model, or are recipes
CHANGED = {"trpo": 80, "process_rewards": 80, "replay": 80} | dict.fromkeys(
    ("ttrl", "gdpo", "sdpo", "opsd", "pope", "luffy", "curriculum", "pass_at_k", "gigpo", "self_reward"), 40
)


def test_no_file_is_long():
    long = {str(path): n for path, text in FILES.items() if (n := len(text.splitlines())) > 350}
    assert long.keys() == {*LONG}, f"files over 350 lines: {long}"


def test_no_function_is_long():
    """No function except `main` has more than 60 lines."""
    for path, text in FILES.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "main":
                lines = node.end_lineno - node.lineno + 1
                assert lines <= 60, f"{path}: {node.name} has {lines} lines"


def test_the_loop_of_grpo_fits_on_a_screen():
    text = script_path("grpo").read_text()
    (main,) = (node for node in ast.parse(text).body if getattr(node, "name", "") == "main")
    lines = [line for line in text.splitlines()[main.lineno - 1 : main.end_lineno] if line.strip()]
    assert len(lines) <= 45 and len(text.splitlines()) <= 170


@pytest.mark.parametrize("name", [name for name in parents() if name not in LONG_SCRIPTS])
def test_a_script_is_short(name):
    assert len(script_path(name).read_text().splitlines()) <= 230


@pytest.mark.parametrize("name,most", CHANGED.items())
def test_a_method_changes_little_in_its_parent(name, most):
    """A method changes few lines of its parent's code; a changed line counts once."""
    parts = difflib.SequenceMatcher(None, code(parents()[name]), code(name), autojunk=False).get_opcodes()
    changed = sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in parts if tag != "equal")
    assert changed <= most, f"{changed} lines differ from {parents()[name]}.py"
