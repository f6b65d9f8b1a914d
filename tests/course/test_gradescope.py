"""In a bare folder, Gradescope's autograder gives the grades of the grader here, or none."""

import ctypes
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

from notebooks.exercises import gradescope
from notebooks.exercises.exercises import EXERCISES
from notebooks.exercises.sandbox import ALLOWED, Filter
from tools.scripts import ROOT

import pytest
from solutions import solve, written
from test_grader import FORBIDDEN

NAME = "dr_grpo.compute_advantages"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """A folder like Gradescope's /autograder, with a submission."""
    folder = tmp_path_factory.mktemp("gradescope") / "autograder"
    for name in ("source", "submission", "results"):
        (folder / name).mkdir(parents=True)
    make = [sys.executable, "-m", "notebooks.exercises.gradescope", folder.parent / "autograder.zip"]
    subprocess.run(make, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    with zipfile.ZipFile(folder.parent / "autograder.zip") as archive:
        archive.extractall(folder / "source")
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    assert modes["run_autograder"] == modes["setup.sh"] == 0o100755
    shutil.copy(folder / "source" / "run_autograder", folder)
    (folder / "run_autograder").chmod(0o755)
    solve(folder / "submission", ["grpo", "reinforce"])
    (folder / "submission" / "dr_grpo.py").write_text(
        written(NAME, FORBIDDEN.format(root=str(folder / "source"), here=str(folder / "results")))
    )
    for name in ("torch", "json", "notebooks", "sitecustomize"):  # the grader must not import these
        (folder / "submission" / f"{name}.py").write_text("raise SystemExit\n")
    return folder


def run(folder, *more, **settings):
    """Run run_autograder with nothing from this repository in its environment."""
    environment = {"PATH": os.defpath, "GRADER_PYTHON": sys.executable}
    command = [folder / "run_autograder", *more]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, **settings)


def results(path):
    return {name: value for name, value in json.loads(path.read_text()).items() if name != "execution_time"}


@pytest.mark.slow
def test_results_are_those_of_the_grader(unpacked, tmp_path):
    done = run(unpacked, "--seed", "3")
    assert done.returncode == 0, done.stderr
    grade = [sys.executable, "-m", "notebooks.exercises.grade", unpacked / "submission"]
    grade += ["--seed", "3", "--json", tmp_path / "results.json"]
    subprocess.run(grade, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    found = results(unpacked / "results" / "results.json")
    assert found == results(tmp_path / "results.json")
    points = {f"{e.script}.py: {e.function}": e.level for e in EXERCISES if e.script in ("grpo", "reinforce")}
    assert {test["name"]: test["score"] for test in found["tests"] if test["score"]} == points
    (forbidden,) = (test for test in found["tests"] if test["name"] == "dr_grpo.py: compute_advantages")
    assert forbidden["output"] == "it ends with ValueError: 23 tried, done: []"
    assert set(found) <= {"score", "output", "tests"} and found["score"] == round(
        35 * sum(points.values()) / sum(e.level for e in EXERCISES), 2
    )
    assert {test["status"] for test in found["tests"]} == {"passed", "failed"}


def refuse_filters():
    """Make the kernel refuse system call filters to this process, as a kernel without them does."""
    machine, _ = ALLOWED[platform.machine()]
    prctl = {"x86_64": 157, "aarch64": 167}[platform.machine()]
    load, if_equal, give = 0x20, 0x15, 0x06
    program = [(load, 0, 0, 4), (if_equal, 0, 4, machine), (load, 0, 0, 0), (if_equal, 0, 2, prctl)]
    program += [(load, 0, 0, 16), (if_equal, 1, 0, 22)]  # first argument: PR_SET_SECCOMP
    program += [(give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050016)]  # allowed; EINVAL
    packed = b"".join(struct.pack("HBBI", *step) for step in program)
    libc = ctypes.CDLL(None)
    libc.prctl(38, 1, 0, 0, 0)
    assert libc.prctl(22, 2, ctypes.byref(Filter(len(program), packed)), 0, 0) == 0


@pytest.mark.slow
def test_without_a_sandbox_nothing_is_run(unpacked):
    """If the kernel refuses the filter, the grader stops before the first function, without a result."""
    (unpacked / "results" / "results.json").unlink(missing_ok=True)
    (unpacked / "submission" / "rloo.py").write_text(f"open({str(unpacked / 'ran')!r}, 'w')\n")
    done = run(unpacked, preexec_fn=refuse_filters)
    assert done.returncode == 1 and "the sandbox does not work on this machine" in done.stderr
    assert "the kernel refuses the system call filter" in done.stderr and "Traceback" not in done.stderr
    assert not (unpacked / "results" / "results.json").exists() and not (unpacked / "ran").exists()


def test_the_scripts(tmp_path):
    """Both scripts are valid bash; setup.sh installs the versions of requirements.txt and the Python that runs."""
    text = gradescope.setup()
    for name in ("torch", *gradescope.PACKAGES):
        (line,) = (line for line in (ROOT / "requirements.txt").read_text().splitlines() if line.startswith(name))
        assert f" {line.split('#')[0].strip()} " in text.replace("\n", " ")
    assert "python$version" in text and gradescope.PYTHON in gradescope.RUN
    for script in (text, gradescope.RUN):
        assert script.startswith("#!/usr/bin/env bash\n")
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_bad_names(tmp_path, capsys):
    for words, sentence in (
        ({"path": Path("autograder")}, "name the file"),
        ({"path": tmp_path / "none" / "a.zip"}, "not a folder"),
        ({"path": tmp_path / "a.zip", "bugs": True}, "--bugs needs --key"),
    ):
        with pytest.raises(SystemExit) as end:
            gradescope.Args(**words)
        assert end.value.code == 2 and sentence in capsys.readouterr().err


def test_the_key_of_a_class_is_in_its_file(tmp_path):
    """The key reaches the grader as one word, whatever characters it has."""
    args = gradescope.Args(tmp_path / "a.zip", key="it's $HOME `x`", bugs=True)
    gradescope.make(args)
    with zipfile.ZipFile(args.path) as archive:
        text = archive.read("run_autograder").decode()
    shell = text.replace("exec ", "printf '%s\\n' ").replace("cd ", "true ")
    words = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout.splitlines()
    assert words[-3:] == ["--key", "it's $HOME `x`", "--bugs"]
    assert "--key" not in gradescope.run_autograder(gradescope.Args(tmp_path / "b.zip"))
