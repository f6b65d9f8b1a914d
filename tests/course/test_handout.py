"""The handout holds no solution, works by itself, and its loops call the students' functions."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys

from notebooks.exercises import grade_class, key, make, silent_bugs, train
from notebooks.exercises.answers import CASES
from notebooks.exercises.cases import cases
from notebooks.exercises.exercises import BY_NAME, EXERCISES, SCRIPTS, functions, needed
from tools.scripts import ROOT, load

import pytest
import torch
import tyro
from solutions import NAMES, solve


@pytest.fixture(scope="module")
def handout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class") / "handout"
    make.make(folder)
    return folder


def test_the_handout_holds_no_solution(handout):
    """No file contains a nontrivial line of a solution or a graded case, except the scripts' loops, which train with
    students' functions, and what those import."""
    texts = {path: path.read_text() for path in handout.rglob("*.py")}
    for exercise in EXERCISES:
        if exercise.script == "loop":
            texts = {path: text for path, text in texts.items() if path.parent == handout}
        node = ast.parse(exercise.source).body[0]
        for statement in node.body[1:]:
            line = ast.unparse(statement)
            if not isinstance(statement, ast.For | ast.Raise | ast.If):
                assert not [path for path, text in texts.items() if line in text], line
    kept = json.loads((handout / "answers.json").read_text())
    assert list(kept) == list(BY_NAME)
    for exercise in map(BY_NAME.get, NAMES):
        graded = CASES.get(exercise.script, cases)(exercise, 123)
        known = [(case["inputs"], case.get("world")) for case in kept[exercise.name]["cases"]]
        assert not [case for case in graded if (case["inputs"], case.get("world")) in known]
    form = json.loads((handout / "silent_bugs_answers.json").read_text())
    assert set(form) == set(silent_bugs.runs()) and not any(any(one.values()) for one in form.values())
    everything = "".join(path.read_text(errors="replace") for path in handout.rglob("*") if path.is_file())
    assert "make_bugs" not in everything and "KEY" not in texts[handout / "silent_bugs.py"]


def test_the_handout_says_what_to_write_and_to_hand_in(handout, tmp_path):
    """The handout's page names every file that the grader reads; these and the commands' files exist."""
    page = (handout / "README.md").read_text()
    asked = {*grade_class.ASKED} - {"variants.py"}
    assert {name for name in re.findall(r"`([\w.]+)`", page) if name in grade_class.ASKED} == asked
    assert {path.name for path in handout.iterdir()} >= asked | {*re.findall(r"python (\w+\.py)", page)}
    assert "variants" not in page
    make.make(tmp_path / "handout", "secret")
    page = (tmp_path / "handout" / "README.md").read_text()
    assert "`variants.py`" in page and (tmp_path / "handout" / "variants.py").exists()
    assert "secret" not in page


TRAIN = """
import json, sys, train
for method, *flags in json.loads(sys.argv[1]):
    try:
        train.main(method, flags)
    except SystemExit as end:
        print(end.code)
    print("-----", flush=True)
"""  # `python train.py` several times in one process


@pytest.mark.slow
@pytest.mark.all_problems
def test_the_handout_stands_alone(handout, tmp_path, capsys):
    """pytest says what is wrong, and with correct functions training repeats the script's run."""
    environment = {"PATH": os.defpath, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    quick = ["--steps", "2", "--prompts-per-step", "4", "--responses-per-prompt", "4", "--max-response-tokens", "24"]
    quick += ["--eval-problems", "4", "--eval-samples", "4"]

    def outcome(*command):
        done = subprocess.run([sys.executable, *command], cwd=handout, capture_output=True, text=True, env=environment)
        return done.returncode, done.stdout + done.stderr

    def trained(*commands):
        status, text = outcome("-c", TRAIN, json.dumps(commands))
        assert status == 0 and text.count("-----\n") == len(commands), text
        return text.split("-----\n")[:-1]

    def of_script(name):
        args = tyro.cli(load(name).Args, args=[*train.FLAGS, *quick, "--run-dir", str(tmp_path / name)])
        load(name).main(args)
        return train.rows(tmp_path / name)

    solve(handout, ["grpo", "dr_grpo"])
    right = (handout / "dr_grpo.py").read_text()
    (handout / "dr_grpo.py").write_text(
        right.replace("(len(mask) * args.max_response_tokens)", "mask.sum(1, keepdim=True)")
    )
    (handout / "rloo.py").write_text(
        "from runner import WrongResult\ndef compute_advantages(*a):\n    raise WrongResult('')\n"
    )
    status, text = outcome("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "grpo or rloo")
    assert status == 1 and "6 passed" in text and "2 failed" in text and "dr_grpo.py, token_weights: " in text
    assert "rloo.py, compute_advantages: it gives no result." in text
    refused, wrong, empty, unknown = trained(
        ["dr_grpo", *quick], ["dr_grpo", "--wrong", *quick, "--steps", "1"], ["gspo", "--wrong", *quick], ["gremlins"]
    )
    assert "dr_grpo.py, token_weights: " in refused and "nothing was trained" in refused
    assert "dr_grpo.py, token_weights: " in wrong and "the reference's at step 20" in wrong
    assert "cannot be trained before" in empty and "gspo.policy_loss" in empty
    assert unknown.startswith("error: gremlins is not a method")
    assert [path.name for path in (handout / "runs").iterdir()] == ["dr_grpo"]
    shutil.rmtree(handout / "runs")
    (handout / "dr_grpo.py").write_text(right)
    status, text = outcome("train.py", "dr_grpo", *quick)
    assert status == 0 and "the reference's at step 20" in text, text
    assert (handout / "runs/dr_grpo/beside_the_reference.png").stat().st_size > 10_000
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # like the handout's processes
    try:
        expected = {name: of_script(name) for name in ("grpo", "dr_grpo")}
    finally:
        torch.set_num_threads(threads)
    assert train.rows(handout / "runs/dr_grpo") == expected["dr_grpo"]
    solve(handout, ["loop"])
    trained(["loop", *quick], ["changed", *quick])
    for name, script in (("loop", "grpo"), ("changed", "dr_grpo")):
        for mine, row in zip(train.rows(handout / "runs" / name), expected[script], strict=True):
            if name == "changed":  # the script logs it with its own loss weights
                mine["entropy"] = row["entropy"] = 0.0
            assert mine == pytest.approx(row, rel=1e-3)


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_loops_take_the_students_functions(handout, script):
    """A loop of the handout is the script without the exercises, which it imports and calls."""
    tree = ast.parse((handout / "loops" / f"{script}.py").read_text())
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    imported = {a.name for node in tree.body if isinstance(node, ast.ImportFrom) for a in node.names}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    asked = {exercise.function for exercise in needed(script)}
    assert asked <= imported & called and not asked & own
    assert own | asked == set(functions(script)) | {"main"}


def test_the_loops_of_the_students(handout):
    """`train` and `changed` get the embedded model in the same way."""
    both = [(handout / "loops" / f"{name}.py").read_text() for name in ("loop", "changed")]
    for text, function in zip(both, ("train", "changed"), strict=True):
        assert f"from loop import {function}  # yours\n" in text and f" {function}(Policy(model), world, world," in text
        compile(text, "loop", "exec")
    assert train.method("loop") == "grpo" and train.method("rloo") == "rloo"
    assert 'METHOD = "grpo"' in both[0] and "METHOD = loop.CHANGE" in both[1]


def test_the_reference_runs(handout):
    """The record has three seeds of each method, with the steps and evaluations of train.py, and accuracy improves."""
    record = json.loads((handout / "reference.json").read_text())
    assert sorted(record) == sorted(SCRIPTS)
    for logs in record.values():
        assert len(logs) == 3
        for log in logs:
            assert [row["step"] for row in log] == list(range(21))
            assert [row["step"] for row in log if "eval/avg" in row] == [0, 10, 20] and log[20]["eval/avg"] > log[0][
                "eval/avg"
            ]


def test_the_silent_bugs_of_a_class(tmp_path, monkeypatch, capsys):
    """With --bugs the handout has the key's runs; if they are missing, the error says how to make them."""
    monkeypatch.setattr(make, "answers", lambda *_: {"level": 1, "right": [], "mistakes": [], "ignored": []})
    monkeypatch.setattr(key, "KEPT", tmp_path / "runs")
    for more, sentence in (({"bugs": True}, "--bugs needs --key"),
                           ({"bugs": True, "key": "k3y"}, "run python -m notebooks.exercises.make_bugs --key first"),
                           ({"folder": tmp_path}, "exists: name a new folder")):  # fmt: skip
        with pytest.raises(SystemExit) as end:
            make.main(make.Args(**{"folder": tmp_path / "handout"} | more))
        assert end.value.code == 2 and sentence in capsys.readouterr().err
    logs = key.class_logs("k3y")
    logs.parent.mkdir(parents=True)
    logs.write_text("{}")
    make.main(make.Args(tmp_path / "handout", "k3y", bugs=True))
    assert (tmp_path / "handout" / "bugs.json").read_text() == "{}"
    assert "37 functions to write" in capsys.readouterr().out
    make.main(make.Args(tmp_path / "other", "k3y"))
    assert (tmp_path / "other" / "bugs.json").read_bytes() == silent_bugs.LOGS.read_bytes()


@pytest.mark.slow
def test_an_option_is_no_folder(tmp_path):
    command = [sys.executable, "-m", "tools.smollm", "--help"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert ended.returncode == 2 and ended.stderr.startswith("error: ") and "folder" in ended.stderr, ended.stderr
    assert not any(tmp_path.iterdir())
