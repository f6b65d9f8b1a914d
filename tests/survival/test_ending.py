"""How a run ends: signals, crash reports, and the summary."""

import errno
import re
import signal
import time
from contextlib import nullcontext
from types import SimpleNamespace

import grpo
from common import ending
from common.run import Run
from common.terminal import Terminal, duration, step_lines
from tools.scripts import ROOT

import pytest


def ended(folder, accuracies, **more):
    """What `summarize` prints for a run of 125 seconds with these held-out accuracies by step."""
    lines = []
    evaluation = {"eval/standard_error": 0.01, "eval/greedy": 0.25, "eval/n": 8}
    run = SimpleNamespace(
        args=SimpleNamespace(model="sums", dataset="sums", seed=1, reward=()), dir=folder, script=ROOT / "grpo.py",
        started=time.perf_counter() - 125, interrupted=False, terminal=SimpleNamespace(write_line=lines.append),
        evaluations={step: evaluation | {"eval/avg": accuracy} for step, accuracy in accuracies.items()},
    )  # fmt: skip
    run.__dict__.update(more)
    ending.summarize(run)
    return lines[0]


def test_summary(tmp_path):
    (tmp_path / "checkpoint-000010").mkdir()
    (tmp_path / "checkpoint-000010" / "config.json").write_text("{}")
    text = ended(tmp_path, {0: 0.25, 10: 0.75})
    assert "held-out accuracy         0.250 → 0.750 ± 0.010 (avg@8 → avg@8)" in text
    assert "2 min 5 s" in text and f"run folder                {tmp_path}" in text
    assert "warning" not in text and "to resume" not in text
    assert "to resume                 python grpo.py --resume" in ended(tmp_path, {0: 0.25, 10: 0.75}, interrupted=True)


def test_how_several_processes_resume(monkeypatch, tmp_path):
    run = SimpleNamespace(dir=tmp_path / "run", args=grpo.Args(), script=ROOT / "grpo.py")
    monkeypatch.setattr(ending, "world_size", lambda: 4)
    monkeypatch.setattr(ending, "local_world_size", lambda: 4)
    assert ending.resume_command(run).startswith("torchrun --nproc-per-node 4 grpo.py --resume")
    monkeypatch.setattr(ending, "local_world_size", lambda: 2)
    assert ending.resume_command(run).startswith("torchrun --nproc-per-node 2 --nnodes 2 ... grpo.py --resume")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk(number, capsys, tmp_path):
    run = SimpleNamespace(dir=tmp_path / "run", args=grpo.Args(), script=ROOT / "grpo.py")
    with pytest.raises(SystemExit) as stop:
        ending.report_crash(run, OSError(number, "no room"))
    assert stop.value.code == 1
    assert "error: the disk is full or a quota is used up: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("accuracies", "where"),
    [
        ({0: 0.25, 5: 0.8, 10: 0.39}, "0.800 at step 5: those weights are in"),
        ({0: 0.8, 5: 0.3, 10: 0.39}, "0.800 at step 0, before training"),
        ({0: 0.25, 5: 0.8, 10: 0.41}, None),  # it lost less than half of its best
    ],
)
def test_a_collapse_is_told(accuracies, where, tmp_path):
    warning = re.search(r"warning: accuracy has collapsed; it was (.*)", ended(tmp_path, accuracies))
    assert (warning and where in warning[1]) if where else warning is None


@pytest.mark.parametrize(
    ("error", "processes", "reported"), [("Broken pipe", 2, True), ("Broken pipe", 1, False), ("another", 2, False)]
)
def test_a_process_that_another_one_left(error, processes, reported, capsys, monkeypatch):
    """An error caused by another process's end gives one sentence; any other error keeps its traceback."""
    monkeypatch.setattr(ending, "world_size", lambda: processes)
    with pytest.raises(SystemExit) if reported else nullcontext():
        ending.report_crash(SimpleNamespace(), RuntimeError(f"[gloo] {error} [127.0.0.1]"))
    assert ("another process ended without a message" in capsys.readouterr().err) == reported


@pytest.mark.parametrize(("rank", "processes"), [(0, 1), (0, 2), (1, 2)])
def test_signals(rank, processes, monkeypatch, capfd):
    """The first signal ends the run after its step, and rank 0 says so. A second one stops at once, unless torchrun
    just repeats the first."""
    monkeypatch.setattr(ending, "rank", lambda: rank)
    monkeypatch.setattr(ending, "world_size", lambda: processes)
    run = SimpleNamespace(stop_requested=0.0)
    run.stop_soon = lambda: setattr(run, "stop_requested", time.monotonic())
    interrupt = ending.interrupt_handler(run)
    interrupt(signal.SIGINT, None)
    assert run.stop_requested and ("finishing this step" in capfd.readouterr().err) == (rank == 0)
    with nullcontext() if processes > 1 else pytest.raises(KeyboardInterrupt):
        interrupt(signal.SIGINT, None)
    run.stop_requested -= 1.5
    with pytest.raises(KeyboardInterrupt):
        interrupt(signal.SIGINT, None)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_after_another_process_failed(rank, tmp_path, monkeypatch):
    """When torchrun ends the other processes, rank 0 removes an empty run folder."""
    monkeypatch.setattr(ending, "rank", lambda: rank)
    monkeypatch.setattr(ending.distributed, "another_failed", lambda: True)
    monkeypatch.setattr(ending.os, "_exit", lambda code: (_ for _ in ()).throw(SystemExit(code)))
    run = SimpleNamespace(dir=tmp_path / "run", stop_requested=0.0)
    run.dir.mkdir()
    with pytest.raises(SystemExit) as end:
        ending.interrupt_handler(run)(signal.SIGTERM, None)
    assert end.value.code == 1 and run.dir.exists() == (rank == 1)


METRICS = {
    "accuracy": 0.5, "reward": 0.5, "loss": 0.1, "length": 41.25, "truncated": 0.125, "zero_std_groups": 0.25,
    "entropy": 0.25, "clip_pos": 0.125, "clip_neg": 0.25, "grad_norm": 1.5, "response_tokens": 3000,
}  # fmt: skip


def test_the_lines_of_steps_and_the_bar(monkeypatch, capsys):
    """Headings are repeated after another line or with new columns, and the bar starts at a resumed run's step."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    terminal = Terminal(lambda: None)
    terminal.print_step(31, 100, METRICS, 2.0)
    assert (terminal.bar.n, terminal.bar.total) == (31, 100) and terminal.bar.dynamic_ncols  # follows its width
    terminal.print_step(32, 100, METRICS, 4.0)
    terminal.write_line("another")
    terminal.print_step(33, 100, METRICS | {"reward": 0.75, "kl": 0.0125}, 3.0)
    terminal.print_step(
        34, 100, {"loss": 0.75, "length": 7.0, "entropy": 0.0, "grad_norm": 0.0, "response_tokens": 6}, 3
    )
    assert terminal.bar.n == 34
    terminal.close()
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.strip()]
    names = "length cut off no signal entropy clipped gradient tokens/s left"
    with_kl = names.replace("clipped", "KL clipped")
    assert lines == [
        f"step accuracy {names}",
        "31/100 0.500 41.2 0.12 0.25 0.250 0.375 1.50 1500 2 min",
        "32/100 0.500 41.2 0.12 0.25 0.250 0.375 1.50 750 3 min",
        "another",
        f"step accuracy reward {with_kl}",
        "33/100 0.500 0.750 41.2 0.12 0.25 0.250 0.0125 0.375 1.50 1000 3 min",
        "step loss length entropy gradient tokens/s left",
        "34/100 0.750 7.0 0.000 0.00 2 3 min",
    ]


def test_a_step_fits_its_terminal():
    """All columns fit 120 characters under their headings; in narrower terminals the least important go first."""
    everything = METRICS | {"reward": 0.75, "kl": 0.0125}
    shown = [
        "step", "accuracy", "reward", "length", "cut off", "no signal", "entropy", "KL", "clipped", "gradient",
        "tokens/s", "left",
    ]  # fmt: skip
    dropped = []
    for width in range(120, 19, -1):
        headings, line = step_lines(999, 1000, everything, 2.0, 36000.0, width)
        assert len(headings) == len(line) <= width
        names = re.split("  +", headings.strip())
        assert len(names) == len(re.split("  +", line.strip()))
        dropped += [name for name in shown if name not in names]
        shown = names
    assert shown == ["step", "accuracy"]
    assert dropped == [
        "tokens/s", "clipped", "KL", "entropy", "cut off", "left", "no signal", "gradient", "length", "reward",
    ]  # fmt: skip


@pytest.mark.parametrize("seconds,text", [(99, "99 s"), (101, "2 min"), (5940, "99 min"), (36000, "10.0 h")])
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize("opened", [True, False])
def test_of_several_processes_the_first_removes_an_empty_folder(opened, tmp_path, monkeypatch):
    """Rank 0 removes an empty run folder, if any, and exits at once, because others may wait for it."""
    monkeypatch.setattr("common.run.world_size", lambda: 2)
    monkeypatch.setattr(ending, "report_crash", lambda run, error: None)
    monkeypatch.setattr(ending, "exit_now", lambda error: (_ for _ in ()).throw(SystemExit(7)))
    run = Run(grpo.Args(), "grpo.py")
    if opened:
        run.dir = tmp_path / "run"
        run.dir.mkdir()
    with pytest.raises(SystemExit) as end:
        run.__exit__(RuntimeError, RuntimeError("lost"), None)
    assert end.value.code == 7 and not (tmp_path / "run").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_process_writes_the_log(rank, tmp_path, monkeypatch):
    monkeypatch.setattr("common.run.rank", lambda: rank)
    run = Run(grpo.Args(), "grpo.py")
    run.dir, run.tracker = tmp_path, SimpleNamespace(log=lambda *_: None)
    run.write_metrics(3, {"accuracy": 0.5})
    assert (tmp_path / "metrics.jsonl").exists() == (rank == 0)
