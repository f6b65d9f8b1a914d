"""Runs that are killed, and answers that attack the verifier."""

import json
import random
import resource
import signal
import string
import subprocess
import sys
import time
from pathlib import Path

from common.verify import Verifier

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "grpo.py", "--steps", "6", "--save-every", "1", "--eval-every", "2"]
COMMAND += ["--prompts-per-step", "4", "--responses-per-prompt", "4", "--max-response-tokens", "48"]
COMMAND += ["--eval-problems", "4", "--eval-samples", "2"]


def start(*flags):
    return subprocess.Popen([*COMMAND, *flags], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def outcome(folder):
    """Final weights, and the log without times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    rows = [{k: v for k, v in row.items() if "second" not in k} for row in rows]
    return load_file(folder / "checkpoint-000006" / "model.safetensors"), rows


def test_killed_runs_end_as_the_uninterrupted_one(tmp_path):
    """SIGKILL at random moments, again and again, also while a checkpoint is written; then to the end."""
    assert start("--run-dir", str(tmp_path / "whole")).wait() == 0
    weights, rows = outcome(tmp_path / "whole")
    rng = random.Random(4)
    folder, kills = tmp_path / "killed", 0
    for _ in range(20):
        begun = (folder / "config.json").exists()
        process = start("--resume" if begun else "--run-dir", str(folder))
        # Wait until the run writes something, so that the kill falls between there and the end.
        before, deadline = snapshot(folder), time.monotonic() + 60
        while snapshot(folder) == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        try:
            process.wait(rng.uniform(0, 0.3) if kills < 8 else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, process.stderr.read()
    assert process.returncode == 0, "the run never came to its end"
    assert kills >= 4
    again, again_rows = outcome(folder)
    assert all(torch.equal(weights[key], again[key]) for key in weights)
    assert again_rows == rows


def snapshot(folder):
    return sorted((str(p), p.stat().st_size) for p in folder.rglob("*") if p.is_file()) if folder.exists() else []


def hostile(rng):
    """One answer that someone, or a model under pressure, might write."""
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


def test_ten_thousand_hostile_answers_to_numbers(tmp_path, monkeypatch):
    """Where the answer is a number, nothing but a literal number is ever evaluated: fast, and without a worker."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    answers = [f"\\boxed{{{hostile(rng)}}}" if rng.random() < 0.8 else hostile(rng) for _ in range(10_000)]
    verifier = Verifier(None, [])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    assert not any(verifier.judge(answers, ["31415926"] * 10_000, [False] * 10_000))
    assert time.perf_counter() - begin < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 100 << 10  # KiB
    assert all(worker.child is None for worker in verifier.workers)
    assert not (tmp_path / "HACKED").exists()
    verifier.close()


def test_hostile_answers_to_expressions(tmp_path, monkeypatch):
    """Through math-verify: no hang beyond the limit, no code run, failures counted, right answers still right."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("common.verify.TIME_LIMIT", 2.0)
    rng = random.Random(1)
    verifier = Verifier(None, [])
    try:
        answers = [f"\\boxed{{{hostile(rng)}}}" for _ in range(60)]
        answers[::10] = ["\\boxed{(x+1)^2}"] * 6
        begin = time.perf_counter()
        verdicts = verifier.judge(answers, ["x^2+2x+1"] * 60, [False] * 60)
        assert time.perf_counter() - begin < 120
        assert all(verdicts[::10]), "a right answer beside hostile ones was lost"
        assert sum(verdicts) == 6
        assert verifier.failures.total() > 0
        assert not (tmp_path / "HACKED").exists()
    finally:
        verifier.close()
