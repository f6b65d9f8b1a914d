"""The grader: correct solutions get all points in every form, and attacks on it get nothing."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace
from xml.etree import ElementTree

from notebooks.exercises import grade, key, make, silent_bugs
from notebooks.exercises.answers import CASES, HANDOUT_SEED
from notebooks.exercises.answers import answers as make_answers
from notebooks.exercises.cases import cases
from notebooks.exercises.exercises import BY_NAME, EXERCISES, FILES, SCRIPTS
from notebooks.exercises.grade import grade_function
from notebooks.exercises.runner import run
from notebooks.exercises.sandbox import Sandbox
from tools.scripts import ROOT

import pytest
from hand_written import HAND_WRITTEN
from solutions import NAMES, answers, solve, written


@pytest.mark.parametrize(("name", "body"), [(name, body) for name, bodies in HAND_WRITTEN.items() for body in bodies])
def test_right_answers_in_other_forms_pass(name, body, sandbox, tmp_path):
    solve(tmp_path, ["grpo"])  # files that loop.py imports
    mark = graded(name, written(name, body), sandbox, tmp_path)
    assert (mark.points, mark.reason) == (BY_NAME[name].level, "")


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
    """Solutions get all points in the sandbox, which sees only inputs, with hidden seeds."""
    solve(tmp_path, FILES)
    seen = []

    class Watched:
        def run(self, files, script, function, cases):
            seen.extend(cases)
            return sandbox.run(files, script, function, cases)

    marks = [grade_function(exercise, tmp_path, Watched(), 1000 + i) for i, exercise in enumerate(EXERCISES)]
    assert [(mark.name, mark.points, mark.reason) for mark in marks] == [(e.function, e.level, "") for e in EXERCISES]
    assert set().union(*seen) <= {"args", "inputs", "weights", "shown", "parts", "top", "world", "seed"}


def test_hidden_cases_differ_from_seed_to_seed():
    for exercise in map(BY_NAME.get, NAMES):
        one, other = ([*CASES.get(exercise.script, cases)(exercise, seed)] for seed in (1, 2))
        results = [run(exercise.module(), exercise.function, made) for made in (one, other)]
        assert one != other and results[0] != results[1]


NAME = "dr_grpo.compute_advantages"  # the function that attacks replace by default
HIJACK = "rewards - rewards.mean(1, keepdim=True)"
OPEN = f"exec(open({str(ROOT / 'dr_grpo.py')!r}).read())"


def constants():
    """Code that recognizes the handout's cases by shape and returns their correct results."""
    outputs = [result["outputs"][0] for result in answers(NAME)["right"]]
    return f"outputs = {[(o['shape'], o['values']) for o in outputs]}\n" + (
        "for shape, values in outputs:\n    if shape == list(rewards.shape):\n"
        "        return torch.tensor(values, dtype=rewards.dtype).view(shape)\nreturn rewards"
    )


FORGED = '[{"outputs": [{"dtype": "float64", "shape": [5, 8], "values": [0]}]}]'
ATTACKS = {
    # seven attacks that once passed or hung
    "constants": (constants, "should be"),
    "exit": ("import os\nos._exit(0)", "ended without a result"),
    "solution by name": ("import dr_grpo\nreturn dr_grpo.compute_advantages(rewards)", "RecursionError"),
    "solution by path": (f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nimport grpo", "imports grpo"),
    "solution by file": (OPEN, "PermissionError"),
    "endless loop": ("while True:\n    pass", "does not end"),
    "endless loop that catches": ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", "does not end"),
    # more attacks
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
    "the terminal": ("raise type('\x1b[2J\\n66 of 66 points', (Exception,), {})('\x9b')", r"\x1b[2J\n66 of 66 points: \x9b"),
    "recursion": ("return compute_advantages(rewards)", "RecursionError"),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_get_nothing(attack, sandbox, hasty, tmp_path):
    body, words = ATTACKS[attack]
    text = written(NAME, body() if callable(body) else body)
    mark = graded(NAME, text, hasty if "endless" in attack else sandbox, tmp_path)
    assert mark.points == 0 and words in mark.reason, mark.reason
    assert mark.reason.isprintable()


def test_attacks_at_import_get_nothing(sandbox, tmp_path):
    for line, words in (("import os\nos._exit(0)", "ended without a result"), (OPEN, "the file ends with PermissionError"),
                        ("raise SystemExit", "SystemExit"), ("\0", "the file ends with"), ("def", "SyntaxError")):  # fmt: skip
        mark = graded(NAME, f"{line}\n", sandbox, tmp_path)
        assert mark.points == 0 and words in mark.reason, mark.reason
    assert graded(NAME, "x = 1\n", sandbox, tmp_path).reason.startswith("it ends with AttributeError")


def test_files_that_are_no_files(sandbox, tmp_path):
    """Missing, linked, endless, binary or huge files get no points and a reason; replaced checks are ignored."""
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
    assert (
        grade_function(exercise, tmp_path, sandbox, 1).reason
        == "the file is not text in UTF-8: save it in that encoding."
    )
    path.write_bytes(b"#" * (1 << 20) + b"#")
    assert grade_function(exercise, tmp_path, sandbox, 1).reason == "the file is larger than 1 MiB."
    for name in ("test_exercises", "verdict", "runner", "conftest", "sitecustomize", "torch", "json"):
        (tmp_path / f"{name}.py").write_text("def verdict(*a): return None\nraise SystemExit(0)\n")
    (tmp_path / "answers.json").write_text("{}")
    path.write_text(make.blank("dr_grpo"))
    mark = grade_function(exercise, tmp_path, sandbox, 1)
    assert (mark.points, mark.reason) == (0, "it is not written yet.")


def memorized(name):
    """A function that recognizes the handout's cases by their inputs and returns their results."""
    known = [
        (case["inputs"], [(o["shape"], o["values"], o["dtype"]) for o in result["outputs"]])
        for case, result in zip(answers(name)["cases"], answers(name)["right"], strict=True)
    ]
    return (
        f"known = {known!r}\n"
        "plain = [{str(x.dtype).removeprefix('torch.'): x.tolist()} if isinstance(x, torch.Tensor) else x for x in "
        "(rewards, *more)]\n"
        "for inputs, outputs in known:\n    if inputs == plain:\n"
        "        made = [torch.tensor(v, dtype=getattr(torch, d)).view(s) for s, v, d in outputs]\n"
        "        return made[0]\nreturn rewards"
    )


def test_memorized_results_pass_the_handout_and_get_nothing(sandbox, tmp_path, monkeypatch, capsys):
    """Memorized results pass the handout's cases but get 0 points from the command, which makes new cases."""
    text = written(NAME, memorized(NAME)).replace("(rewards: Tensor)", "(rewards: Tensor, *more)")
    (tmp_path / "dr_grpo.py").write_text(text)
    known = grade_function(BY_NAME[NAME], tmp_path, sandbox, HANDOUT_SEED)
    assert known.points == 1, "it does not know the handout's cases"
    seeds, whole = [], grade.grade

    def one_function(folder, sandbox, seed, *more):
        seeds.append(seed)
        return whole(folder, sandbox, seed, exercises=[BY_NAME[NAME]])[:1]

    monkeypatch.setattr(grade, "grade", one_function)
    for _ in range(2):
        grade.main(grade.Args(tmp_path))
        assert capsys.readouterr().out.startswith("0 of 1  dr_grpo.py: compute_advantages")
    assert len({*seeds, HANDOUT_SEED}) == 3
    grade.main(grade.Args(tmp_path, seed=5))
    assert seeds[2] == 5 and "seed of the cases: 5" in capsys.readouterr().out


def test_the_cases_of_a_grading_are_those_of_its_seed(tmp_path):
    """A grading's cases follow from its seed, differ per function, and are never the handout's."""
    solve(tmp_path, SCRIPTS)
    given = []
    watched = SimpleNamespace(run=lambda files, script, function, cases: given.append(cases) or [{"problem": "none"}])
    with suppress(IndexError):  # the stub returns one problem for all cases
        grade.grade(tmp_path, watched, 40, exercises=EXERCISES[:3])
    expected = [make_answers(exercise, 40 + i)["cases"] for i, exercise in enumerate(EXERCISES[:3])]
    assert given == expected
    for exercise, made in zip(EXERCISES, given, strict=False):
        assert not [case for case in made if case["inputs"] in [c["inputs"] for c in answers(exercise.name)["cases"]]]


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


@pytest.mark.parametrize(
    ("wrong", "points", "words"),
    [
        ((), 3, ""),
        (("mechanism",), 2, "mechanism: incorrect"),
        (("mechanism", "test"), 1, "test: incorrect"),
        (("bug",), 0, "bug: incorrect"),
        (("unknown",), 0, "bug: none of the choices"),
    ],
)
def test_points_for_a_silent_bug(wrong, points, words, tmp_path):
    """Name, mechanism and test earn one point each, but nothing counts without the name."""
    form = {}
    for letter, (bug, _) in key.PRACTICE.items():
        right = dict(zip(("bug", "mechanism", "test"), (bug, *key.KEY[bug]), strict=True))
        choices = {"bug": silent_bugs.BUGS, "mechanism": silent_bugs.MECHANISMS, "test": silent_bugs.TESTS}
        form[letter] = right | {
            part: next(choice for choice in choices[part] if choice != right[part]) for part in wrong if part in choices
        }
        if "unknown" in wrong:
            form[letter]["bug"] = "gremlins"
    (tmp_path / grade.FORM).write_text(json.dumps(form))
    marks = grade.grade_bugs(tmp_path)
    of_bugs = [mark for mark in marks if key.PRACTICE[mark.name[-1]][0] != "healthy"]
    assert {(mark.points, mark.most) for mark in of_bugs} == {(points, 3)} and (len(marks), len(of_bugs)) == (9, 7)
    assert all(words in mark.reason for mark in of_bugs) and all(bool(mark.reason) == bool(words) for mark in of_bugs)
    assert {(mark.points, mark.most) for mark in marks if mark not in of_bugs} == {(int(points > 0), 1)}


@pytest.mark.parametrize(("text", "reason"), [("[]", "not an object"), ("{", "not JSON"), (None, "missing")])
def test_a_form_of_silent_bugs_that_cannot_be_read(text, reason, tmp_path):
    if text is not None:
        (tmp_path / grade.FORM).write_text(text)
    marks = grade.grade_bugs(tmp_path)
    assert [mark.name for mark in marks] == [f"run {letter}" for letter in key.PRACTICE]
    assert all(mark.points == 0 and reason in mark.reason for mark in marks) and sum(mark.most for mark in marks) == 23


def test_the_command(tmp_path):
    """The command writes points, Gradescope's JSON and JUnit's XML; it names mistakes and refuses bad input."""
    submission = tmp_path / "submission"
    submission.mkdir()
    solve(submission, ["grpo"])
    text = (submission / "grpo.py").read_text()
    (submission / "grpo.py").write_text(text.replace("-torch.min", "torch.min"))
    (submission / "reinforce.py").write_text("import os\nos._exit(0)\n")
    form = {letter: dict(zip(("bug", "mechanism", "test"), (bug, *key.KEY[bug]), strict=True))
            for letter, (bug, _) in key.PRACTICE.items()}  # fmt: skip
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
    assert sum(test["score"] for test in tests.values()) == 1 + 1 + 2 + 2 + 20  # of 23
    assert results["score"] == round(35 * (1 + 1 + 2 + 2) / sum(e.level for e in EXERCISES) + 15 * 20 / 23, 2)
    assert "silent bugs" not in results["output"], "students see it"
    hidden = {name for name, test in tests.items() if test["visibility"] == "after_published"}
    assert hidden == {f"{grade.FORM}: run {letter}" for letter in form}, "a form could be guessed"
    suite = ElementTree.parse(tmp_path / "results.xml").getroot()
    assert suite.get("tests") == str(len(tests)) and len(suite.findall("testcase/failure")) == int(
        suite.get("failures")
    )
    assert int(suite.get("failures")) == len(EXERCISES) - 4 + 1
    for wrong in ([str(tmp_path / "nowhere")], [str(submission), "--json", str(tmp_path / "no" / "out.json")]):
        bad = subprocess.run([*command[:3], *wrong], cwd=ROOT, capture_output=True, text=True)
        assert bad.returncode == 2 and bad.stderr.startswith("error: ") and "Traceback" not in bad.stderr
