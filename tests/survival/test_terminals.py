"""Terminals that are closed or know only ASCII, and model output that would steer them."""

import os
import subprocess
import sys

from common.records import Problem
from common.terminal import Terminal, write_samples
from tools.scripts import ROOT

import pytest
import runs
from runs import on_tiny


@pytest.mark.slow
def test_stdout_that_is_closed(tiny_model, tmp_path):
    """As with `| head -1`: the step under way is finished and saved, and no traceback follows."""
    flags = runs.flags(on_tiny(tiny_model) | {"steps": 200, "run_dir": tmp_path / "run"})
    process = subprocess.Popen(
        [sys.executable, "grpo.py", *flags], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if line.startswith("step    1"):
            break
    process.stdout.close()
    error = process.stderr.read()
    process.wait(60)
    assert "Traceback" not in error and "BrokenPipe" not in error, error
    (checkpoint,) = (tmp_path / "run").glob("checkpoint-*")
    assert int(checkpoint.name.removeprefix("checkpoint-")) < 200


@pytest.mark.slow
def test_ascii_terminal(tiny_model, tmp_path):
    flags = runs.flags(on_tiny(tiny_model) | {"steps": 1, "run_dir": tmp_path / "run"})
    result = subprocess.run(
        [sys.executable, "grpo.py", *flags], cwd=ROOT, capture_output=True,
        text=True, env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "held-out accuracy" in result.stdout and "?" in result.stdout


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
