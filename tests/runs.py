"""Runs for tests, in this process or in new ones, and comparisons that name the differences."""

import gzip
import json
import multiprocessing
import os
import re
import runpy
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import grpo
from common.checkpoints import CHECKSUMS
from common.folders import checksum
from common.metrics import read_metrics
from tools import plots
from tools.scripts import ROOT, load

import pytest
import torch
import tyro
from conftest import SMALL, needed
from filelock import FileLock
from safetensors.torch import load_file

# New processes start with the libraries loaded, including those that a run loads only when it begins.
LIBRARIES = ["torch", "torch.distributed.checkpoint", "transformers.models.llama.modeling_llama", "datasets", "pytest"]
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([*LIBRARIES, "tyro", "tools.plots", "grpo"])

TINY = SMALL | {"max_response_tokens": 8, "eval_problems": 2}  # for the tiny model, whose context is short


def on_tiny(folder):
    """Settings for a run of the tiny model on its own problems."""
    return TINY | {"model": str(folder), "dataset": str(folder / "problems.jsonl")}


def run(name, folder, **settings):
    """Run a script's main in this process; return its last checkpoint's weights and the rows of its log."""
    script = load(name)
    script.main(script.Args(run_dir=folder, **SMALL | needed(script) | settings))
    return results(folder)


def results(folder, name="checkpoint-*"):
    """The last checkpoint's weights and the log's rows; docs/runs.md must explain every logged name."""
    last, rows = sorted(folder.glob(name))[-1], read_metrics(folder)
    explained = set(re.findall(r"`([\w/]+)`", (ROOT / "docs/runs.md").read_text())) | {"eval/pass@k"}
    logged = {re.sub(r"reward/\w+", "reward/NAME", re.sub(r"pass@\d+", "pass@k", key)) for row in rows for key in row}
    assert not logged - explained, f"docs/runs.md does not explain these metrics: {sorted(logged - explained)}"
    # Copies, because loaded tensors are mapped from the file, which a test may damage.
    return {name: weight.clone() for name, weight in load_file(last / "model.safetensors").items()}, rows


def settings_of(script, flags):
    """The settings that command-line flags set."""
    defaults, given = vars(script.Args()), vars(tyro.cli(script.Args, args=" ".join(flags).split()))
    return {name: value for name, value in given.items() if value != defaults[name]}


def base_weights():
    """Weights of the embedded model."""
    return load_file(ROOT / "worlds/sums/model/model.safetensors")


def without_times(rows):
    return [{k: v for k, v in row.items() if "second" not in k} for row in rows]


def differing(weights, others):
    """Names of the tensors that are not equal bit for bit."""
    assert weights.keys() == others.keys(), f"tensors of only one model: {sorted(weights.keys() ^ others.keys())}"
    return [name for name in weights if not torch.equal(weights[name], others[name])]


def assert_same_weights(weights, others):
    assert not (names := differing(weights, others)), f"these tensors differ: {names}"


def assert_same_rows(rows, others, more=()):
    """Two logs are equal except for times; the first may also have the metrics in `more`."""
    steps, other_steps = ([row["step"] for row in some] for some in (rows, others))
    assert steps == other_steps, f"logged steps: {steps} and {other_steps}"
    for row, other in zip(without_times(rows), without_times(others), strict=True):
        names = sorted(name for name in row.keys() | other.keys() if row.get(name) != other.get(name))
        names = [name for name in names if name not in more]
        values = [(name, row.get(name), other.get(name)) for name in names]
        assert not values, f"step {row['step']}: these metrics differ: {values}"


def refused(capsys, tmp_path, script=grpo, **settings):
    """The error message of a run that refuses these settings."""
    with pytest.raises(SystemExit) as stop:
        script.main(script.Args(**SMALL | {"run_dir": tmp_path / "run"} | settings))
    error = capsys.readouterr().err.strip()
    assert stop.value.code == 2, f"exit code {stop.value.code}: {error}"
    assert error.startswith("error: ") and "\n" not in error and "Traceback" not in error, f"not one sentence: {error}"
    assert not (tmp_path / "run").exists(), "a refused run left its folder behind"
    return error


def ended(capsys, call, code=2):
    """The error message that ends a call."""
    with pytest.raises(SystemExit) as stop:
        call()
    error = capsys.readouterr().err.strip()
    assert stop.value.code == code and error.startswith("error: ") and "\n" not in error, error
    return error


def seal(checkpoint):
    """Write checksums of the checkpoint's current files, as an attacker could do."""
    files = [file for file in checkpoint.rglob("*") if file.is_file() and file.name != CHECKSUMS]
    sums = {str(file.relative_to(checkpoint)): checksum(file) for file in files}
    (checkpoint / CHECKSUMS).write_text(json.dumps(sums))


def flags(settings):
    """Settings as command-line flags."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def start(processes, script, folder, given="", resume=False):
    """Start a script in `folder`, in one process without torchrun or in several with it."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(launcher if processes > 1 else []), script]
    command += ["--resume", str(folder)] if resume else [*given.split(), "--run-dir", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def play(words, folder):
    """Target for PROCESSES: run `python` with these arguments in its own session, with its output in files."""
    os.setsid()
    for number, name in ((1, "output"), (2, "errors")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout.reconfigure(line_buffering=True)
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for its child processes
    plots.draw_curves = lambda *_: None  # drawing takes a second
    sys.argv = list(map(str, words))
    runpy.run_path(sys.argv[0], run_name="__main__")


def made_once(factory, name, make):
    """A folder that one worker of pytest-xdist makes and all workers share."""
    root = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    with FileLock(root / f"{name}.lock"):
        if not (root / name).exists():
            make(root / f"{name}-partial")
            (root / f"{name}-partial").rename(root / name)
    return root / name


def finish(process):
    """Wait for a run to end and return what it printed."""
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


def write_logs(folder, rows, responses=None):
    """Write a run folder with a log and with saved responses by step."""
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    for step, lines in (responses or {}).items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "rollouts" / f"step-{step:06d}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@contextmanager
def watched(folder):
    """Serve the runs in a folder with tools.watch; yields the port."""
    from tools.watch.__main__ import Args, Server  # loading plotly takes a second

    with Server(Args((folder,), port=0)) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_port
        server.shutdown()


def alive(pid):
    """Whether a process is still running."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
