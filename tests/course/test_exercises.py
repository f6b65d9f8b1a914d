"""The exercises: correct solutions pass in every form, mistakes are named, and the grader compares only numbers."""

import ast
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

from notebooks.exercises import grade, key, make, make_bugs, silent_bugs, train
from notebooks.exercises.answers import HANDOUT_SEED, wrong_sources
from notebooks.exercises.answers import answers as make_answers
from notebooks.exercises.cases import SETTINGS
from notebooks.exercises.exercises import BY_NAME, EXERCISES, SCRIPTS, code, defaults, functions, module, needed, owner
from notebooks.exercises.grade import grade_bugs, grade_function
from notebooks.exercises.mistakes import MISTAKES
from notebooks.exercises.runner import run
from notebooks.exercises.sandbox import Sandbox
from notebooks.exercises.verdict import verdict

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
NAMES = list(BY_NAME)


@cache
def answers(name):
    return make_answers(BY_NAME[name], HANDOUT_SEED)


def judged(name, made):
    """The handout's verdict on a module that has the exercise's function."""
    return verdict(run(made, BY_NAME[name].function, answers(name)["cases"]), answers(name))


def changed(name, old, new):
    """The solution with part of the exercise's function replaced."""
    exercise = BY_NAME[name]
    source = functions(exercise.script)[exercise.function]
    assert old in source
    return module(exercise.script, {exercise.function: source.replace(old, new)})


def written(name, body):
    """The text of the handout's file with one function filled in."""
    exercise = BY_NAME[name]
    text = make.blank(exercise.script)
    node = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == exercise.function)
    lines = text.splitlines()
    head, tail = lines[: node.body[-1].lineno - 1], lines[node.end_lineno :]
    return "\n".join([*head, *(f"    {line}" for line in body.splitlines()), *tail]) + "\n"


def as_module(text):
    made = ModuleType("student")
    sys.modules["student"] = made  # dataclasses look up their module
    exec(text, made.__dict__)
    return made


def test_the_seventeen_that_differ():
    """17 of the 33 advantages, weights and losses differ. Each is asked for once, and five other functions too."""
    three = ("compute_advantages", "token_weights", "policy_loss")
    different = {(function, code(functions(script)[function])) for script in SCRIPTS for function in three}
    assert len(SCRIPTS) * len(three) == 33 and len(different) == 17
    asked = [(e.function, code(functions(e.script)[e.function])) for e in EXERCISES]
    assert len(set(asked)) == len(asked) == 22 and different < set(asked)
    assert {function for function, _ in set(asked) - different} == {
        "tis_weight", "kl_penalty", "value_loss", "has_signal"
    }  # fmt: skip
    assert {e.level for e in EXERCISES} == {1, 2, 3}
    assert owner("cispo", "compute_advantages") == "grpo" and owner("rloo", "policy_loss") == "reinforce"
    assert {e.name for e in needed("dapo")} == {
        "grpo.compute_advantages", "dapo.token_weights", "dapo.policy_loss", "grpo.tis_weight", "grpo.kl_penalty",
        "dapo.has_signal",
    }  # fmt: skip


def test_what_the_page_for_teachers_counts():
    page = (ROOT / "notebooks/README.md").read_text()
    assert f"{len(EXERCISES)} functions are to be written" in page and f"{len(MISTAKES)} mistakes are known" in page
    assert f"{sum(e.level for e in EXERCISES)} in all" in page


def test_the_filter_is_dapos():
    """The function of dynamic sampling equals the line in DAPO's loop."""
    assert make.SIGNAL_LINE in (ROOT / "dapo.py").read_text()
    rows = torch.tensor([[0.0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    kept = [0 < sum(row) < 4 for row in rows.tolist()]
    assert module("dapo").has_signal(rows, rows).tolist() == kept == [False, True, True, False]


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_passes(name):
    assert judged(name, module(BY_NAME[name].script)) is None
    shapes = {tuple(result["outputs"][0]["shape"]) for result in answers(name)["right"]}
    types = {next(iter(x)) for case in answers(name)["cases"] for x in case["inputs"] if isinstance(x, dict)}
    assert len(shapes) >= 3 and types >= ({"bool"} if name.endswith("token_weights") else {"float64", "float32"})


@pytest.mark.parametrize("name,line,wrong_line,message", MISTAKES)
def test_every_mistake_is_named(name, line, wrong_line, message):
    assert judged(name, changed(name, line, wrong_line)) == message


@pytest.mark.parametrize("name", NAMES)
def test_other_methods_functions_are_named(name):
    """Another method's function is named, matches a listed mistake, or needs an input or setting that is not there."""
    exercise, listed = BY_NAME[name], {message for n, *_, message in MISTAKES if n == name}
    known = [message for message, _ in wrong_sources(exercise)]
    for message, source in wrong_sources(exercise):
        problem = judged(name, module(exercise.script, {exercise.function: source}))
        missing = "args has no setting" in problem or "it ends with NameError" in problem
        assert problem in known or (message not in listed and missing), problem


@pytest.mark.parametrize("name", NAMES)
def test_hidden_cases_tell_every_mistake(name):
    """Unseen random inputs also reveal every listed mistake and every ignored setting."""
    exercise = BY_NAME[name]
    hidden = make_answers(exercise, 2024, named=False)
    wrong = [changed(name, line, wrong_line) for n, line, wrong_line, _ in MISTAKES if n == name]
    for setting in {setting for settings in SETTINGS.get(name, []) for setting in settings}:
        wrong.append(changed(name, f"args.{setting}", literal(defaults(exercise.script)[setting])))
    assert all(verdict(run(made, exercise.function, hidden["cases"]), hidden) for made in wrong)


def literal(value):
    return repr(value).replace("inf", "float('inf')")


@pytest.mark.parametrize("name", NAMES)
def test_mistakes_differ_from_one_another(name):
    """Otherwise one mistake would get another's message."""
    messages = [mistake["message"] for mistake in answers(name)["mistakes"]]
    assert {message for n, *_, message in MISTAKES if n == name} <= set(messages)


@pytest.mark.parametrize("name,setting", [(n, s) for n, settings in SETTINGS.items() for one in settings for s in one])
def test_a_setting_that_is_ignored_is_named(name, setting):
    value = defaults(BY_NAME[name].script)[setting]
    assert judged(name, changed(name, f"args.{setting}", literal(value))).startswith(f"args.{setting} is ignored")


@pytest.mark.parametrize(
    "name,old,new,words",
    [
        ("grpo.compute_advantages", "return (rewards", "(rewards", "a `return` is missing"),
        ("grpo.policy_loss", "return loss, {", "return loss.mean(), {", "a scalar"),
        ("grpo.policy_loss", "return loss, {", "return loss\n    {", "return loss, {}"),
        ("grpo.policy_loss", "exp(logp - old_logp)", "exp(logp - old_logp).detach()", "is detached"),
        ("cispo.policy_loss", "advantages * logp", "advantages * logp.detach()", "is detached"),
        ("gspo.policy_loss", "torch.exp(log_ratio)", "torch.exp(log_ratio.detach())", "is detached"),
        ("gspo.policy_loss", "(logp - old_logp) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)",
         "(logp - old_logp)).mean(1, keepdim=True)", "the mask is ignored"),
        ("grpo.policy_loss", "torch.exp(logp - old_logp)", "torch.tensor(__import__('numpy').exp(logp.numpy()))", "NumPy"),
        ("grpo.tis_weight", "return weight if", "return weight.numpy() if", "a NumPy array"),
        ("dr_grpo.compute_advantages", "rewards - rewards.mean(1, keepdim=True)",
         "rewards.sub_(rewards.mean(1, keepdim=True))", "changes its input number 1 in place"),
        ("reinforce.policy_loss", "-advantages * logp", "-logp.mul_(advantages)", "changes its input number 1 in place"),
        ("rloo.compute_advantages", "return rewards - others", "return (rewards - others).float()", "it returns float32"),
        ("grpo.token_weights", "return mask", "return 0 * mask # ", "it returns int64"),
        ("dapo.has_signal", "(correct.mean(1) < 1)", "(correct.mean(1) < 1).float().long()", "return booleans"),
        ("rloo.compute_advantages", "(rewards.shape[1] - 1)", "9", "a shape is hard-coded"),
        ("ppo.compute_advantages", "values.shape[1]", "10", "a shape is hard-coded; with another shape it ends with IndexError"),
        ("grpo.token_weights", "return mask", "return mask[:, :1]", "it returns the shape (6, 1), not (6, 10)"),
        ("grpo.token_weights", "return mask", "return nothing", "it ends with NameError"),
        ("grpo.token_weights", "return mask", "return mask / 0 * mask", "not finite"),
        ("grpo.token_weights", "return mask", "return 3.0 * mask", "should be"),
        ("grpo.token_weights", "return mask", "raise NotImplementedError  # ", "not written yet"),
        ("ppo.compute_advantages", "return advantages,", "return", "advantages and returns"),
    ],
)  # fmt: skip
def test_what_no_list_of_mistakes_foresees(name, old, new, words):
    assert words in judged(name, changed(name, old, new))


GSPO_TOKEN = """s = torch.exp(((logp - old_logp) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)).detach()
ratio = s * torch.exp(logp - logp.detach())
return -torch.min(ratio * advantages, ratio.clamp(1 - args.clip_eps_low, 1 + args.clip_eps_high) * advantages), {}"""
MASK_FORM = """r = torch.exp(logp - old_logp)
gone = ((advantages > 0) & (r > 1 + args.clip_eps)) | ((advantages < 0) & (r < 1 - args.clip_eps))
return -(r.detach() * advantages * logp) * ~gone, {}"""
GAE_FORWARD_SUM = """B, T = values.shape
keep = mask.to(values.dtype)
after = torch.cat([values * keep, torch.zeros_like(values[:, :1])], dim=1)[:, 1:]
delta = (rewards + args.gamma * after - values) * keep
rows = [sum((args.gamma * args.gae_lambda) ** (k - t) * delta[:, k] for k in range(t, T)) for t in range(T)]
advantages = torch.stack(rows, dim=1) * keep
return advantages, advantages + values"""


@pytest.mark.parametrize(
    "name,body",
    [
        ("rloo.compute_advantages", "G = rewards.shape[1]\nreturn G / (G - 1) * (rewards - rewards.mean(1, keepdim=True))"),
        *(
            ("grpo.compute_advantages", f"z = rewards - rewards.mean(1, keepdim=True)\nreturn z / {std}")
            for std in (
                "(rewards.std(1, correction=args.ddof, keepdim=True) + 1e-8)",
                "(rewards.std(1, correction=args.ddof, keepdim=True) + 1e-4)",
                "(rewards.var(1, correction=args.ddof, keepdim=True) + 1e-5).sqrt()",
                "rewards.std(1, correction=args.ddof, keepdim=True).clamp(min=1e-6)",
            )
        ),
        ("maxrl.compute_advantages", "mean = rewards.mean(1, keepdim=True)\nreturn torch.nan_to_num((rewards - mean) / mean)"),
        ("grpo.policy_loss", MASK_FORM),
        ("gspo.policy_loss", GSPO_TOKEN),
        ("cispo.policy_loss", "r = torch.exp(logp - old_logp).detach()\n"
         "return -torch.where(r > args.ratio_cap, args.ratio_cap, r) * advantages * logp, {}"),
        ("ppo.compute_advantages", GAE_FORWARD_SUM),
        ("dr_grpo.token_weights", "return mask.double() / (mask.shape[0] * args.max_response_tokens)"),
        ("grpo.kl_penalty", "x = ref_logp - logp\nreturn torch.expm1(x) - x"),
        ("dapo.has_signal", "return (correct != correct[:, :1]).any(1)"),
    ],
)  # fmt: skip
def test_right_answers_in_other_forms_pass(name, body, sandbox, tmp_path):
    text = written(name, body)
    assert judged(name, as_module(text)) is None
    (tmp_path / f"{BY_NAME[name].script}.py").write_text(text)
    mark = grade_function(BY_NAME[name], tmp_path, sandbox, seed=5)
    assert (mark.points, mark.reason) == (BY_NAME[name].level, "")


# The handout


@pytest.fixture(scope="module")
def handout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class") / "handout"
    make.make(folder)
    return folder


def solve(folder, scripts):
    """Put the solutions into the files of some methods."""
    head = "from __future__ import annotations\nimport torch\nfrom torch import Tensor\n\n"
    for script in scripts:
        (folder / f"{script}.py").write_text(head + "\n\n".join(functions(script).values()) + "\n")


def test_the_handout_holds_no_solution(handout):
    """No file contains a line of a solution (other than trivial ones) or a graded case."""
    texts = {path: path.read_text() for path in handout.rglob("*.py")}
    for exercise in EXERCISES:
        node = ast.parse(functions(exercise.script)[exercise.function]).body[0]
        for statement in node.body[1:]:
            line = ast.unparse(statement)
            if not isinstance(statement, ast.For | ast.Raise | ast.If):
                assert not [path for path, text in texts.items() if line in text], line
    kept = json.loads((handout / "answers.json").read_text())
    assert list(kept) == NAMES
    for exercise in EXERCISES:
        graded, given = make_answers(exercise, 123, named=False), kept[exercise.name]
        assert not [c for c in graded["cases"] if c["inputs"] in [k["inputs"] for k in given["cases"]]]
    everything = "".join(path.read_text(errors="replace") for path in handout.rglob("*") if path.is_file())
    assert "make_bugs" not in everything and "KEY" not in texts[handout / "silent_bugs.py"]


@pytest.mark.slow
def test_the_handout_stands_alone(handout, tmp_path):
    """pytest says what is wrong; once a method's functions are correct, training repeats the script's run."""
    environment = {"PATH": os.defpath, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    quick = [
        "--steps",
        "2",
        "--prompts-per-step",
        "4",
        "--responses-per-prompt",
        "4",
        "--max-response-tokens",
        "24",
        "--eval-problems",
        "4",
        "--eval-samples",
        "4",
    ]

    def outcome(*command):
        done = subprocess.run([sys.executable, *command], cwd=handout, capture_output=True, text=True, env=environment)
        return done.returncode, done.stdout + done.stderr

    solve(handout, ["grpo", "dr_grpo"])
    right = (handout / "dr_grpo.py").read_text()
    (handout / "dr_grpo.py").write_text(
        right.replace("(len(mask) * args.max_response_tokens)", "mask.sum(1, keepdim=True)")
    )
    status, text = outcome("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "grpo")
    assert status == 1 and "6 passed" in text and "1 failed" in text and "dr_grpo.py, token_weights: " in text
    status, text = outcome("train.py", "dr_grpo", *quick)
    assert status == 1 and "dr_grpo.py, token_weights: " in text and "nothing was trained" in text
    (handout / "dr_grpo.py").write_text(right)
    status, text = outcome("train.py", "dr_grpo", *quick)
    assert status == 0 and "the reference's at step 20" in text, text
    assert (handout / "runs/dr_grpo/beside_the_reference.png").stat().st_size > 10_000
    command = [sys.executable, "dr_grpo.py", *train.FLAGS, *quick, "--run-dir", tmp_path / "run"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env=environment)
    assert train.rows(tmp_path / "run") == train.rows(handout / "runs/dr_grpo")
    assert outcome("train.py", "gremlins")[1].startswith("error: gremlins is not a method")


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


def test_the_reference_runs(handout):
    """Three seeds of each method, run with the flags of train.py except for the steps."""
    record = json.loads((handout / "reference.json").read_text())
    assert sorted(record) == sorted(SCRIPTS)
    for logs in record.values():
        assert len(logs) == 3
        for log in logs:
            assert [row["step"] for row in log] == list(range(21))
            assert [row["step"] for row in log if "eval/avg" in row] == [0, 10, 20] and log[20]["eval/avg"] > log[0][
                "eval/avg"
            ]


# The grader


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(seconds=10) as made:
        yield made


@pytest.fixture(scope="module")
def hasty():
    with Sandbox(seconds=1) as made:
        yield made


def graded(name, text, sandbox, folder, seed=9):
    (folder / f"{BY_NAME[name].script}.py").write_text(text)
    return grade_function(BY_NAME[name], folder, sandbox, seed)


def test_the_solution_gets_all_points(sandbox, tmp_path):
    """With hidden seeds, in the sandbox, which gets only inputs."""
    solve(tmp_path, SCRIPTS)
    seen = []

    class Watched:
        def run(self, script, source, function, cases):
            seen.extend(cases)
            return sandbox.run(script, source, function, cases)

    marks = [grade_function(exercise, tmp_path, Watched(), 1000 + i) for i, exercise in enumerate(EXERCISES)]
    assert [(mark.name, mark.points, mark.reason) for mark in marks] == [(e.function, e.level, "") for e in EXERCISES]
    assert set().union(*seen) <= {"args", "inputs", "weights", "shown", "parts", "top"}


def test_hidden_cases_differ_from_seed_to_seed():
    for exercise in EXERCISES:
        one, other = (make_answers(exercise, seed, named=False) for seed in (1, 2))
        assert one["cases"] != other["cases"] and one["right"] != other["right"]


NAME = "dr_grpo.compute_advantages"  # the function that the attacks replace, unless they name another
HIJACK = "rewards - rewards.mean(1, keepdim=True)"
OPEN = f"exec(open({str(ROOT / 'dr_grpo.py')!r}).read())"


def constants():
    """Code that returns the correct results of the handout's cases, by shape."""
    outputs = [result["outputs"][0] for result in answers(NAME)["right"]]
    return f"outputs = {[(o['shape'], o['values']) for o in outputs]}\n" + (
        "for shape, values in outputs:\n    if shape == list(rewards.shape):\n"
        "        return torch.tensor(values, dtype=rewards.dtype).view(shape)\nreturn rewards"
    )


FORGED = '[{"outputs": [{"dtype": "float64", "shape": [5, 8], "values": [0]}]}]'
ATTACKS = {
    # seven that once passed or hung
    "constants": (constants, "should be"),
    "exit": ("import os\nos._exit(0)", "ended without a result"),
    "solution by name": ("import dr_grpo\nreturn dr_grpo.compute_advantages(rewards)", "ends with"),
    "solution by path": (f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nimport grpo", "No module named 'grpo'"),
    "solution by file": (OPEN, "PermissionError"),
    "endless loop": ("while True:\n    pass", "does not end"),
    "endless loop that catches": ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", "does not end"),
    # further ones
    "sys.exit": ("import sys\nsys.exit(0)", "SystemExit"),
    "solution through torch": (f"return torch.from_file({str(ROOT / 'dr_grpo.py')!r}, size=9, dtype=torch.uint8)", "ends with"),
    "solution through the parent": ("import os\nreturn open(f'/proc/{os.getppid()}/mem')", "PermissionError"),
    "solution in the modules": (
        "import sys\nfor m in list(sys.modules.values()):\n"
        "    if 'exercises' in getattr(m, '__name__', '') or {'EXERCISES', 'MISTAKES', 'answers'} & set(vars(m)):\n"
        "        raise ValueError('found')\nraise ValueError('nothing there')", "nothing there"),
    "solution in the memory": (
        "import gc, sys\nframe = sys._getframe()\nwhile frame:\n"
        "    if {'hidden', 'answers', 'right'} & set(frame.f_locals): raise ValueError('found')\n    frame = frame.f_back\n"
        "for x in gc.get_objects():\n"
        "    if isinstance(x, dict) and {'right', 'mistakes', 'ignored'} <= {k for k in x if isinstance(k, str)}:\n"
        "        raise ValueError('found')\n"
        "raise ValueError('nothing there')", "nothing there"),
    "comparison patched": (
        "torch.allclose = torch.equal = lambda *a, **k: True\ntorch.Tensor.__eq__ = lambda *a: True\nreturn rewards", "should be"),
    "runner patched": (
        "import sys\nsys.modules['runner'].run_case = lambda *a: {'problem': None}\n"
        "sys.modules['runner'].plain = lambda x: {'dtype': 'float64', 'shape': [6, 10], 'values': [0.0] * 60}\nreturn rewards",
        "None"),
    "gradient patched": ("torch.autograd.grad = lambda *a, **k: (torch.ones(6, 10),)\nreturn -rewards", "should be"),
    "output forged": (
        f"import os\nfor fd in range(64):\n    try: os.write(fd, b'''{FORGED}''')\n    except OSError: pass\nos._exit(0)",
        "not a result"),
    "output is no JSON": ("import os\nfor fd in range(64):\n    try: os.write(fd, b'[[[[' * 9999)\n    except OSError: pass\nos._exit(0)",
                          "not a result"),
    "output without end": ("import os\nwhile True:\n    for fd in range(64):\n        try: os.write(fd, b'x' * 65536)\n"
                           "        except OSError: pass", "more than any correct result"),
    "printing": ("print('{\"score\": 100}')\nreturn rewards", "should be"),
    "lying tensor": (
        "class Lie(torch.Tensor):\n    __eq__ = __ne__ = lambda *a: True\nreturn torch.zeros_like(rewards).as_subclass(Lie)",
        "should be"),
    "not a number": ("return rewards * float('nan')", "not finite"),
    "memory": ("return torch.ones(1 << 34)", "ends with RuntimeError"),
    "crash": ("import ctypes\nctypes.string_at(0)", "ended by SIGSEGV"),
    "recursion": ("return compute_advantages(rewards)", "RecursionError"),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_get_nothing(attack, sandbox, hasty, tmp_path):
    body, words = ATTACKS[attack]
    text = written(NAME, body() if callable(body) else body)
    mark = graded(NAME, text, hasty if "endless" in attack else sandbox, tmp_path)
    assert mark.points == 0 and words in mark.reason, mark.reason


def test_attacks_at_import_get_nothing(sandbox, tmp_path):
    for line, words in (("import os\nos._exit(0)", "ended without a result"), (OPEN, "the file ends with PermissionError"),
                        ("raise SystemExit", "SystemExit"), ("\0", "the file ends with"), ("def", "SyntaxError")):  # fmt: skip
        mark = graded(NAME, f"{line}\n", sandbox, tmp_path)
        assert mark.points == 0 and words in mark.reason, mark.reason
    assert graded(NAME, "x = 1\n", sandbox, tmp_path).reason.startswith("it ends with AttributeError")


def test_files_that_are_no_files(sandbox, tmp_path):
    """A missing, linked, endless or binary file and replaced checks get no points and a reason."""
    exercise = BY_NAME["dr_grpo.token_weights"]
    path = tmp_path / "dr_grpo.py"
    assert grade_function(exercise, tmp_path, sandbox, 1).reason == "the file is missing."
    path.symlink_to(ROOT / "dr_grpo.py")
    assert grade_function(exercise, tmp_path, sandbox, 1).reason == "it is not a plain file."
    path.unlink()
    os.mkfifo(path)
    assert grade_function(exercise, tmp_path, sandbox, 1).reason == "it is not a plain file."
    path.unlink()
    path.write_bytes(b"\xff\xfe")
    assert grade_function(exercise, tmp_path, sandbox, 1).reason == "the file is not text in UTF-8."
    path.write_bytes(b"#" * (1 << 20) + b"#")
    assert grade_function(exercise, tmp_path, sandbox, 1).reason == "the file is larger than 1 MiB."
    for name in ("test_exercises", "verdict", "runner", "conftest", "sitecustomize", "torch", "json"):
        (tmp_path / f"{name}.py").write_text("def verdict(*a): return None\nraise SystemExit(0)\n")
    (tmp_path / "answers.json").write_text("{}")
    path.write_text(make.blank("dr_grpo"))
    mark = grade_function(exercise, tmp_path, sandbox, 1)
    assert (mark.points, mark.reason) == (0, "it is not written yet.")


FORBIDDEN = """import ctypes, os, signal, socket, subprocess, threading, resource
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    if getattr(libc, name)(*args) != 0: raise OSError(ctypes.get_errno(), name)
attempts = dict(
    read=lambda: open({root!r} + "/grpo.py"), passwd=lambda: open("/etc/passwd"), write=lambda: open({here!r} + "/x", "w"),
    folder=lambda: os.listdir({root!r}), unlink=lambda: os.unlink({here!r} + "/victim"), link=lambda: os.symlink("a", {here!r} + "/b"),
    rename=lambda: os.rename({here!r} + "/victim", {here!r} + "/c"), truncate=lambda: os.truncate({here!r} + "/victim", 0),
    chmod=lambda: os.chmod({here!r} + "/victim", 0), stat=lambda: os.stat({here!r}),
    network=lambda: socket.socket(), fork=lambda: os.fork(), program=lambda: subprocess.run(["true"]),
    shell=lambda: call("system", b"true"), thread=lambda: threading.Thread(target=int).start(),
    parent=lambda: os.kill(os.getppid(), 0), everyone=lambda: os.kill(-1, 0), memory=lambda: os.memfd_create("x"),
    ptrace=lambda: call("ptrace", 16, os.getpid() - 1, 0, 0), limits=lambda: resource.setrlimit(resource.RLIMIT_CPU, (-1, -1)),
    spy=lambda: call("process_vm_readv", os.getpid() - 1, 0, 0, 0, 0, 0), pipe=lambda: os.pipe(), tensor=lambda: torch.load({root!r}),
)
done = []
for name, attempt in attempts.items():
    try: attempt()
    except (OSError, RuntimeError, ValueError, ImportError): continue
    done.append(name)
raise ValueError(f"{{len(attempts)}} tried, done: {{done}}")"""


def test_the_sandbox_allows_nothing_but_computing(sandbox, tmp_path):
    (tmp_path / "victim").write_text("here")
    mark = graded(NAME, written(NAME, FORBIDDEN.format(root=str(ROOT), here=str(tmp_path))), sandbox, tmp_path)
    assert mark.reason == "it ends with ValueError: 23 tried, done: []"
    assert (tmp_path / "victim").read_text() == "here"


def test_the_command(tmp_path):
    """Points, Gradescope's JSON and JUnit's XML; mistakes are named, silent bugs counted, bad input refused."""
    submission = tmp_path / "submission"
    submission.mkdir()
    solve(submission, ["grpo"])
    text = (submission / "grpo.py").read_text()
    (submission / "grpo.py").write_text(text.replace("-torch.min", "torch.min"))
    (submission / "reinforce.py").write_text("import os\nos._exit(0)\n")
    form = {letter: dict(zip(("bug", "mechanism", "test"), (bug, *key.KEY[bug]), strict=True))
            for letter, bug in key.SHOWN.items() if letter in silent_bugs.runs()}  # fmt: skip
    form["C"]["bug"] = "healthy"
    (submission / grade.FORM).write_text(json.dumps(form))
    command = [sys.executable, "-m", "notebooks.exercises.grade", str(submission), "--seed", "3"]
    files = ["--json", str(tmp_path / "results.json"), "--junit", str(tmp_path / "results.xml")]
    done = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    tests = {test["name"]: test for test in results["tests"]}
    assert len(tests) == len(EXERCISES) + len(form)
    assert tests["grpo.py: tis_weight"]["score"] == tests["grpo.py: tis_weight"]["max_score"] == 2
    assert (
        tests["grpo.py: policy_loss"]["score"] == 0 and "the sign is wrong" in tests["grpo.py: policy_loss"]["output"]
    )
    assert tests["reinforce.py: policy_loss"]["output"] == "its process ended without a result."
    assert tests["ppo.py: value_loss"]["output"] == "the file is missing."
    assert results["score"] == sum(test["score"] for test in tests.values()) == 1 + 1 + 2 + 2 + 3 * (len(form) - 1)
    suite = ElementTree.parse(tmp_path / "results.xml").getroot()
    assert suite.get("tests") == str(len(tests)) and len(suite.findall("testcase/failure")) == int(
        suite.get("failures")
    )
    assert int(suite.get("failures")) == len(EXERCISES) - 4 + 1
    for wrong in ([str(tmp_path / "nowhere")], [str(submission), "--json", str(tmp_path / "no" / "out.json")]):
        bad = subprocess.run([*command[:3], *wrong], cwd=ROOT, capture_output=True, text=True)
        assert bad.returncode == 2 and bad.stderr.startswith("error: ") and "Traceback" not in bad.stderr


# Silent bugs


def test_the_runs_hide_what_they_are():
    """The record holds three seeds of each run and of its healthy twin, without name, script or setting."""
    record = json.loads(silent_bugs.LOGS.read_text())
    assert set(record) == {"date", "versions", "runs"} and set(record["runs"]) <= set(make_bugs.RUNS)
    assert list(make_bugs.RUNS) == list(key.SHOWN)
    for run_ in record["runs"].values():
        assert set(run_) == {"healthy", "shown"} and [len(logs) for logs in run_.values()] == [3, 3]
        logs = run_["healthy"] + run_["shown"]
        assert len({json.dumps(log) for log in logs}) == 6 and len({len(log) for log in logs}) == 1
        assert all(set(row) <= {"step", *silent_bugs.PANELS} for log in logs for row in log)
    names = list(key.SHOWN.values())
    assert names.count("healthy") == 2 and len(set(names)) == 9 and set(names) == set(key.KEY)
    assert len(silent_bugs.BUGS) == len(silent_bugs.MECHANISMS) == len(silent_bugs.TESTS) == 13
    for i, texts in enumerate((silent_bugs.MECHANISMS, silent_bugs.TESTS)):
        assert len({pair[i] for pair in key.KEY.values()} & set(texts)) == 9


@pytest.mark.parametrize("letter", make_bugs.RUNS)
def test_every_bug_can_be_made(letter):
    """The line that a bug changes occurs once in its file, and the changed file is valid Python."""
    script, _, change = make_bugs.RUNS[letter]
    file, line, wrong_line = change or (f"{script}.py", "def main", "def main")
    text = (ROOT / file).read_text()
    assert text.count(line) == 1, f"{file}: {line!r}"
    ast.parse(text.replace(line, wrong_line))


def test_points_for_silent_bugs(tmp_path):
    """One point each for name, mechanism and test; the latter two only with the correct name; none for nonsense."""
    bug, third = key.SHOWN["C"], list(silent_bugs.runs()).index("C")
    mechanism, test = key.KEY[bug]
    for answer, points in (
        ({"bug": bug, "mechanism": mechanism, "test": test}, 3),
        ({"bug": bug, "mechanism": "M8", "test": test}, 2),
        ({"bug": bug}, 1),
        ({"bug": "healthy", "mechanism": mechanism, "test": test}, 0),
        ({"bug": [bug]}, 0),
        (bug, 0),
    ):
        (tmp_path / grade.FORM).write_text(json.dumps({"C": answer}))
        marks = grade_bugs(tmp_path)
        assert [mark.points for mark in marks] == [points if i == third else 0 for i in range(len(silent_bugs.runs()))]
        assert bug not in marks[third].reason, "the reason must not say the answer"
    (tmp_path / grade.FORM).write_text(silent_bugs.blank_form())
    assert sum(mark.points for mark in grade_bugs(tmp_path)) == 0
    for text in ("[]", "[" * 100_000, "no JSON"):
        (tmp_path / grade.FORM).write_text(text)
        assert all(mark.points == 0 and mark.reason for mark in grade_bugs(tmp_path))


def test_a_picture_of_a_run(tmp_path):
    figure = silent_bugs.show_bug("C")
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert all(len(axes.lines) == 6 for axes in shown) and len(shown) >= 9


@pytest.mark.parametrize("module", ["notebooks.exercises.make", pytest.param("tools.smollm", marks=pytest.mark.slow)])
def test_an_option_is_no_folder(module, tmp_path):
    command = [sys.executable, "-m", module, "--help"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert ended.returncode == 2 and ended.stderr.startswith("error: ") and "folder" in ended.stderr, ended.stderr
    assert not any(tmp_path.iterdir())
