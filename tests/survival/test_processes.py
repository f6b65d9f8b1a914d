"""How a run of several processes ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from common import distributed
from tools.scripts import ROOT

import pytest
from runs import flags, on_tiny, start


def endless(tiny_model, **settings):
    """Flags for a run that does not end by itself."""
    return " ".join(flags(on_tiny(tiny_model) | {"steps": 1000, "eval_every": 0} | settings))


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for(path, process):
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_process_ends_all(tiny_model, tmp_path):
    """After SIGKILL of the second process, all end within seconds, with one sentence that says how to resume."""
    run = start(2, "grpo.py", tmp_path / "run", endless(tiny_model, save_every=1, keep=100))
    wait_for(tmp_path / "run" / "checkpoint-000002", run)
    workers = children(run.pid)
    os.kill(workers[1], signal.SIGKILL)
    begin = time.monotonic()
    output, _ = run.communicate(timeout=60)
    assert time.monotonic() - begin < 30
    assert run.returncode != 0
    assert output.count("error: another process ended without a message") == 1, output
    assert f"--resume {tmp_path / 'run'}" in output
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


@pytest.mark.slow
def test_ctrl_c_saves_and_ends_all(tiny_model, tmp_path):
    """Ctrl-C reaches torchrun and all processes, as in a terminal: the step is saved, and all end."""
    run = start(2, "grpo.py", tmp_path / "run", endless(tiny_model, save_every=0))
    wait_for(tmp_path / "run" / "metrics.jsonl", run)
    workers = children(run.pid)
    for pid in [*workers, run.pid]:
        os.kill(pid, signal.SIGINT)
    output, _ = run.communicate(timeout=90)
    assert output.count("interrupted: finishing this step and saving") == 1
    assert output.count(f"--resume {tmp_path / 'run'}") == 1
    assert len(list((tmp_path / "run").glob("checkpoint-*"))) == 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


@pytest.mark.parametrize(
    "given, sentence",
    [
        ("--lr 5", "error: --lr"),
        pytest.param("--model /no/such/folder", "error: --model /no/such/folder", marks=pytest.mark.slow),
    ],
)
def test_bad_input_has_one_sentence(given, sentence, tmp_path):
    run = start(2, "grpo.py", tmp_path / "run", given)
    output, _ = run.communicate(timeout=90)
    assert run.returncode != 0
    assert output.count("error: ") == 1 and output.count(sentence) == 1
    assert not (tmp_path / "run").exists()


def test_the_process_that_reports_is_not_interrupted(monkeypatch):
    """torchrun's SIGTERM after another process's end does not interrupt the process that reports."""
    asked = []

    class Store:
        def add(self, *_):
            os.kill(os.getpid(), signal.SIGTERM)
            return 1

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(distributed, "store", Store())
    before = signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    try:
        assert distributed.may_report() and not asked
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_the_first_process_may_be_the_last_to_fail(tmp_path):
    """torchrun ends rank 0 after another process has ended; its sentence is printed all the same."""
    script = tmp_path / "late.py"
    script.write_text(
        "import time\nfrom common.cli import fail\nfrom common.distributed import rank\n"
        "time.sleep(0 if rank() else 2)\nfail('no')"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90)
    assert run.returncode != 0 and run.stderr.count("error: no\n") == 1
