"""Terminals that are closed or only know ASCII, and model output with control characters."""

import ast
import os
import shlex
import signal
import subprocess
import sys

from common.cli import fail, say
from common.records import Problem
from common.terminal import Terminal, write_samples
from tools.scripts import ROOT

import pytest
import runs
from runs import on_tiny


@pytest.mark.slow
def test_stdout_that_is_closed(tiny_model, tmp_path):
    """If stdout closes, as with `| head -1`, the step is finished and saved, and no traceback follows."""
    flags = runs.flags(on_tiny(tiny_model) | {"steps": 200, "run_dir": tmp_path / "run"})
    process = subprocess.Popen(
        [sys.executable, "grpo.py", *flags], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if line.startswith("  1/200 "):
            break
    process.stdout.close()
    error = process.stderr.read()
    process.wait(60)
    assert "Traceback" not in error and "BrokenPipe" not in error, error
    (checkpoint,) = (tmp_path / "run").glob("checkpoint-*")
    assert int(checkpoint.name.removeprefix("checkpoint-")) < 200


@pytest.mark.parametrize("command", ["claims", "tools.compare grpo dapo"])
def test_commands_whose_reader_has_left(command):
    process = subprocess.Popen(
        [sys.executable, "-m", *command.split()], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait(60) == -signal.SIGPIPE


@pytest.mark.slow
def test_ascii_terminal(tiny_model, tmp_path):
    flags = runs.flags(on_tiny(tiny_model) | {"steps": 1, "run_dir": tmp_path / "run"})
    result = subprocess.run(
        [sys.executable, "grpo.py", *flags], cwd=ROOT, capture_output=True,
        text=True, env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "held-out accuracy" in result.stdout and "?" in result.stdout


def test_standard_streams_that_are_closed(tmp_path):
    """Output to closed streams is discarded, also from child processes, and no file takes their numbers."""
    (tmp_path / "a.py").write_text(
        "import common, subprocess, sys\n"
        "with open('out', 'w') as file:\n"
        "    assert file.fileno() > 2\n"
        "    print('lost', flush=True), print('lost', file=sys.stderr, flush=True)\n"
        "    child = 'import os, sys; print(1, flush=True); os.write(2, b\"2\"); sys.exit(7)'\n"
        "    print(subprocess.run([sys.executable, '-c', child]).returncode, file=file)\n"
    )
    command = f"{sys.executable} a.py <&- >&- 2>&-"
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0 and (tmp_path / "out").read_text() == "7\n"


@pytest.mark.slow
def test_run_without_stdout(tiny_model, tmp_path):
    flags = runs.flags(on_tiny(tiny_model) | {"steps": 1, "run_dir": tmp_path / "run"})
    command = " ".join(["exec", sys.executable, "grpo.py", *map(shlex.quote, flags), ">&-"])
    done = subprocess.run(command, shell=True, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert (tmp_path / "run/checkpoint-000001").is_dir()


def test_one_function_prints():
    """Only constants are passed to `print`; everything else goes through `say`, which escapes control characters."""
    own = {"common/cli.py", "common/help.py", "common/verification/worker.py", "tools/compare.py"}  # own text only
    own |= {f"notebooks/exercises/{name}.py" for name in ("sandbox", "silent_bugs", "make_bugs", "train")}
    scripts = [path for pattern in ("*.py", "methods/*.py", "recipes/*.py") for path in ROOT.glob(pattern)]
    shared = [path for name in ("common", "tools", "notebooks") for path in (ROOT / name).rglob("*.py")]
    for path in scripts + shared:
        if str(path.relative_to(ROOT)) not in own:
            for call in ast.walk(ast.parse(path.read_text())):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print":
                    assert all(isinstance(arg, ast.Constant) for arg in call.args), f"{path}:{call.lineno}"


def test_foreign_text_in_a_message_cannot_forge_a_line(capsys):
    with pytest.raises(SystemExit):
        fail("--dataset has no column: use \x1b[2J\rerror: none\nsaved, \u202e\x9b")
    assert (
        capsys.readouterr().err == "error: --dataset has no column: use \\x1b[2J\\rerror: none\\nsaved, \\u202e\\x9b\n"
    )
    say("rows\n\tand \x07", keep="\n\t")
    assert capsys.readouterr().out == "rows\n\tand \\x07\n"
    Terminal(lambda: None).write_line("warning: \x1b[2J")
    assert capsys.readouterr().out == "warning: \\x1b[2J\n"


def test_what_a_model_writes_does_not_steer_the_terminal(tmp_path, capsys):
    problem = Problem("q", "4\x07", "\x1b[2J sum", [1])
    sample = (problem, "```\n<script>alert(1)</script>\n## Step 1: \x1b[31mred\x9b \u202e", True)
    Terminal(lambda: None).print_first_sample(sample)
    output = capsys.readouterr().out
    assert "\x1b" not in output and "\x07" not in output and "\x9b" not in output and "\u202e" not in output
    assert "\\x1b[2J sum" in output
    write_samples(tmp_path / "s" / "step-000001.md", [sample])
    text = (tmp_path / "s" / "step-000001.md").read_text()
    assert "\x1b" not in text and "\n````text\n```\n<script>" in text and text.count("````") == 2
