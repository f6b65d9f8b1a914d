"""Seconds per step, by stage, with one and with several processes of one thread (or GPU) each.

    python -m benchmarks.scaling                                # grpo.py as it is; about five minutes on two cores
    python -m benchmarks.scaling --processes 1 2 4 8 --model Qwen/Qwen2.5-1.5B-Instruct --dataset openai/gsm8k \\
        --dataset-config main --max-response-tokens 1024        # all other flags are grpo.py's

Runs are interleaved. For each stage, the result is the median over the steps of all runs except each run's first step.
Writes reports/scaling.json.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from common.metrics import read_metrics
from tools.reports import write_report
from tools.scripts import ROOT

import torch
import tyro

STAGES = ("sync", "generate", "verify", "logps", "train")


@dataclass
class Args:
    processes: tuple[int, ...] = (1, 2)
    """Numbers of processes to compare; the first is what the others are compared with."""
    repeats: int = 3
    """Interleaved runs with each number."""
    steps: int = 9
    """Steps of each run."""


def run(processes: int, args: Args, flags: list[str]) -> list[dict]:
    """What a run logged about its steps, without the first."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    fixed = ["--steps", str(args.steps), "--eval-every", "0", "--eval-problems", "4", "--save-every", "0"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        command = [sys.executable, *(launcher if processes > 1 else []), "grpo.py", *fixed, *flags]
        subprocess.run(
            [*command, "--run-dir", str(path)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return [row for row in read_metrics(path) if row["step"] > 1]


def main(args: Args, flags: list[str]) -> None:
    rows: dict[int, list[dict]] = {n: [] for n in args.processes}
    for _ in range(args.repeats):
        for n in args.processes:
            rows[n] += run(n, args, flags)
    seconds = {
        n: {stage: statistics.median(row[f"seconds/{stage}"] for row in rows[n]) for stage in STAGES}
        | {"step": statistics.median(sum(row[f"seconds/{stage}"] for stage in STAGES) for row in rows[n])}
        for n in args.processes
    }
    first = args.processes[0]
    print(
        "| stage |"
        + "".join(f" {n} |" for n in args.processes)
        + " times faster |\n"
        + "|---" * (2 + len(seconds))
        + "|"
    )
    for stage in (*STAGES, "step"):
        of_stage = [seconds[n][stage] for n in args.processes]
        cells = "".join(f" {s:.3f} s |" for s in of_stage)
        print(f"| {stage} |{cells} {', '.join(f'{of_stage[0] / s:.2f}' for s in of_stage[1:])} |")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu, one thread for each process"
    record = {"date": date.today().isoformat(), "device": device, "flags": flags, "seconds": seconds}
    record["times_faster"] = {n: seconds[first]["step"] / seconds[n]["step"] for n in args.processes[1:]}
    write_report("scaling", record)


if __name__ == "__main__":
    main(*tyro.cli(Args, description=__doc__, return_unknown_args=True))
