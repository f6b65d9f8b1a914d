"""Runs that are killed or run out of resources, and answers that attack the verifier."""

import random
import resource
import signal
import string
import subprocess
import sys
import time
from pathlib import Path

import grpo
from common.verification import Verifier
from tools.scripts import ROOT

import pytest
from conftest import SMALL
from runs import PROCESSES, assert_same_rows, assert_same_weights, flags, on_tiny, play, results
from safetensors.torch import load_file


def start(folder, *words):
    process = PROCESSES.Process(target=play, args=(["grpo.py", *words], folder))
    process.start()
    return process


@pytest.mark.slow
def test_killed_runs_end_as_the_uninterrupted_one(tiny_model, tmp_path):
    """A run killed at random moments, even during a save, and resumed ends with the same result."""
    kills = 3
    (tmp_path / "even.py").write_text("def even(problem, text, tokens, truncated): return len(text) % 2\n")
    reward = "--reward", f"{tmp_path / 'even.py'}:even"  # the tiny model has no correct responses
    given = flags(on_tiny(tiny_model) | {"steps": 60, "save_every": 1, "eval_every": 20, "lr": 1e-2})
    given += reward
    whole = start(tmp_path, *given, "--run-dir", tmp_path / "whole")
    whole.join()
    assert whole.exitcode == 0, (tmp_path / "errors").read_text()
    weights, rows = results(tmp_path / "whole")
    assert any(row.get("grad_norm") for row in rows), "nothing was learned"
    rng = random.Random(4)
    folder, killed = tmp_path / "killed", 0
    for _ in range(4 * kills):
        begun = (folder / "config.json").exists()
        process = start(tmp_path, *(["--resume", folder, *reward] if begun else [*given, "--run-dir", folder]))
        # Wait until the run has saved a step, so that the kill comes after that.
        before, deadline = saved(folder), time.monotonic() + 120
        while saved(folder) == before and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.002)
        process.join(rng.uniform(0, 0.3) if killed < kills else None)
        if process.is_alive():
            process.kill()
            process.join()
            killed += 1
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL, (tmp_path / "errors").read_text()
    assert process.exitcode == 0, "the run never came to its end"
    assert "resuming" in (tmp_path / "output").read_text()
    assert killed == kills, f"only {killed} of {kills} kills came in time"
    again, again_rows = results(folder)
    assert_same_weights(weights, again)
    assert_same_rows(rows, again_rows)


def saved(folder):
    return sorted(path.name for path in folder.glob("checkpoint-0*"))


def hostile(rng):
    """One answer that attacks the verifier."""
    digits = "".join(rng.choices(string.digits, k=rng.choice((1, 3, 50, 5000))))
    nested = rng.randint(1, 300)
    return rng.choice(
        [
            lambda: "{" * nested,
            lambda: "}" * nested,
            lambda: "\\boxed{" * nested + "1" + "}" * rng.randint(0, nested),
            lambda: "\\frac{" * nested + "1",
            lambda: "\\frac{1}{0}",
            lambda: f"\\frac{{{digits}}}{{{digits[::-1]}}}",
            lambda: "9^{9^{9^9}}"[: rng.randint(1, 11)],
            lambda: digits + "!",
            lambda: "\x00" * rng.randint(1, 20) + digits,
            lambda: "".join(rng.choices("0123456789+-*/^{}()\\ ,.=$", k=rng.randint(1, 60))),
            lambda: "".join(chr(rng.randint(1, 0x2FFF)) for _ in range(rng.randint(1, 40))),
            lambda: "__import__('os').system('touch HACKED')",
            lambda: "eval(open('HACKED','w').write('x'))",
            lambda: "\\begin{pmatrix} 1 & 2 \\\\ 3" + rng.choice(["", "\\end{pmatrix}"]),
            lambda: "\\sum_{i=1}^{100000000} i",
            lambda: "(x+1)^{1000}",
            lambda: "x" * 100_000,
            lambda: "",
        ]
    )()


def processes_of(verifier):
    """The running workers of a verifier, and their children."""
    return [pid for worker in verifier.pool.workers if worker.process for pid in family(worker.process.pid)]


def test_ten_thousand_hostile_answers_to_numbers(tmp_path, monkeypatch):
    """If the gold answer is a number, only literal numbers are read: fast, and without a worker."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    answers = [f"\\boxed{{{hostile(rng)}}}" if rng.random() < 0.8 else hostile(rng) for _ in range(10_000)]
    verifier = Verifier(grpo.Args(), None, [])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    assert not any(verifier.judge(answers, ["31415926"] * 10_000, [False] * 10_000))
    assert time.perf_counter() - begin < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 100 << 10  # KiB
    assert not processes_of(verifier), "a worker was asked"
    assert not (tmp_path / "HACKED").exists()
    verifier.close()


CORRECT = ["(x+1)^2", "x^2+2x+1", "1+2x+x^2", "(1+x)^2", "(x+1)(x+1)", "x^{2}+2 x+1", "x\\cdot x+2x+1", "y=(x+1)^2"]


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_hostile_answers_to_expressions(count, tmp_path, monkeypatch):
    """math-verify never hangs beyond the limit, runs no code, does not grow, and its failures are counted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("common.verification.verifier.TIME_LIMIT", 0.5)
    rng = random.Random(1)
    answers = [f"\\boxed{{{hostile(rng)}}}" for _ in range(count)]
    answers[::100] = [f"\\boxed{{{rng.choice(CORRECT)}}}" for _ in answers[::100]]
    verifier = Verifier(grpo.Args(), None, [])
    begin = time.perf_counter()
    scores = verifier.judge(answers, ["x^2+2x+1"] * count, [False] * count)
    # Two workers; no answer takes longer than the limit, and equal answers are judged once.
    assert time.perf_counter() - begin < len(set(answers)) * 0.5 / 2 + 60
    wrong = [answer for i, answer in enumerate(answers) if scores[i] != (i % 100 == 0)]
    assert not wrong, f"judged incorrectly: {wrong}"
    assert verifier.failures.total() > count / 100, f"few failures: {verifier.failures}"
    processes = processes_of(verifier)
    assert processes and all(resident_mib(pid) < 300 for pid in processes)
    verifier.close()
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes), "a worker outlived its verifier"
    assert not (tmp_path / "HACKED").exists()


def family(pid):
    """A process and its children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def resident_mib(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def test_full_disk(tmp_path):
    """If a checkpoint does not fit, the previous one stays intact, and one sentence says how to resume."""
    grpo.main(grpo.Args(run_dir=tmp_path / "run", save_every=1, **SMALL))
    (tmp_path / "run" / "checkpoint-000002" / "model.safetensors").write_bytes(b"broken")
    limit = 1 << 20  # bytes of any file; the weights take more
    command = [sys.executable, "grpo.py", "--resume", str(tmp_path / "run")]
    result = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert result.returncode == 1
    assert "skipping the broken checkpoint" in result.stdout and "checkpoint-000002" in result.stdout
    message = result.stderr.strip().splitlines()[-1]
    assert message.startswith("error: the checkpoint of step 2 cannot be written") and "--resume" in message
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "run" / "checkpoint-partial").exists()
    load_file(tmp_path / "run" / "checkpoint-000001" / "model.safetensors")


@pytest.mark.slow
def test_too_little_memory(tmp_path):
    limit = 3 << 30  # bytes of address space
    sizes = ["--prompts-per-step", "32", "--responses-per-prompt", "32", "--num-minibatches", "1"]
    sizes += ["--micro-batch-tokens", str(10**9), "--eval-problems", "4", "--eval-samples", "1"]
    result = subprocess.run(
        [sys.executable, "grpo.py", *sizes, "--run-dir", str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert result.returncode == 1
    assert "error: not enough memory" in result.stderr and "--micro-batch-tokens" in result.stderr
    assert "Traceback" not in result.stderr


def test_too_little_memory_for_the_model(tmp_path, monkeypatch, capsys):
    """A model that does not fit is reported as too little memory, not as broken."""

    def does_not_fit(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", does_not_fit)
    with pytest.raises(SystemExit) as end:
        grpo.main(grpo.Args(run_dir=tmp_path / "run"))
    assert end.value.code == 1
    assert capsys.readouterr().err.startswith("error: not enough memory")
