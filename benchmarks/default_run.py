"""The README's main claim: `python grpo.py` with seeds 1 to 3, one after the other, with no other program running.

    python -m benchmarks.default_run            # runs and draws, about 12 minutes on two cores
    python -m benchmarks.default_run --redraw   # only draws, from default_run.json

Measures held-out accuracy before and after, time, and peak memory; reports/default_run.png shows how accuracy and
response length rise together.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from common.cli import fail
from common.metrics import read_metrics
from tools.plots import BLUE, GREEN, ORANGE, RED, panel
from tools.reports import REPORTS, read_report, write_report
from tools.scripts import ROOT
from tools.stats import interval

import tyro
from matplotlib.figure import Figure


@dataclass
class Args:
    seeds: int = 3
    """Number of seeds."""
    redraw: bool = False
    """Only draw again."""


def run(seed: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "grpo.py", "--seed", str(seed), "--run-dir", f"{folder}/run"]
        start = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
        config = json.loads((Path(folder) / "run" / "config.json").read_text())
        log = read_metrics(Path(folder) / "run")
    # The maximum over all children so far; the runs are alike.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    training = sum(v for row in log for k, v in row.items() if k.startswith("seconds/") and k != "seconds/evaluate")
    return {
        "seed": seed,
        "seconds": seconds,
        "training_seconds": training,
        "peak_gib": peak,
        "versions": config["versions"],
        "threads": config["threads"],
        "log": log,
    }


def draw(runs: list[dict]) -> None:
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for r in runs:
        rows = r["log"]
        held_out = [(row["step"], row["eval/avg"]) for row in rows if "eval/avg" in row]
        first = r is runs[0]
        left.plot([r["step"] for r in rows[1:]], [r["accuracy"] for r in rows[1:]], color=BLUE, alpha=0.5)
        # There are few evaluations, so they are points.
        left.plot(*zip(*held_out, strict=True), color=ORANGE, marker="o", linestyle="none")
        for key, color, name in (("length_correct", GREEN, "correct"), ("length_incorrect", RED, "incorrect")):
            points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
            right.plot(*zip(*points, strict=True), color=color, alpha=0.6, label=f"{name} answers" if first else None)
    left.plot([], [], color=BLUE, label="training batches")
    left.plot([], [], color=ORANGE, marker="o", linestyle="none", label="held out, avg@n")
    panel(left, "Accuracy", "step", "fraction of correct responses", ylim=(0, 1))
    panel(right, "Response length", "step", "tokens")
    for axes in (left, right):
        axes.legend()
    figure.suptitle(f"python grpo.py, {len(runs)} seeds")
    figure.savefig(REPORTS / "default_run.png", dpi=100)


def main(args: Args) -> None:
    if args.seeds < 2:
        fail("--seeds: an interval takes at least 2.")
    if not args.redraw:
        runs = [run(seed) for seed in range(1, args.seeds + 1)]
        write_report("default_run", runs)
    runs = read_report("default_run")
    draw(runs)
    after, half = interval([r["log"][-1]["eval/avg"] for r in runs])
    greedy = statistics.mean(r["log"][-1]["eval/greedy"] for r in runs)
    print(
        f"avg@16 {runs[0]['log'][0]['eval/avg']:.3f} -> {after:.3f} ± {half:.3f} (95 % interval, {len(runs)} seeds)\n"
        f"greedy {runs[0]['log'][0]['eval/greedy']:.3f} -> {greedy:.3f}\n"
        f"whole run {max(r['seconds'] for r in runs):.0f} s at most, of it training "
        f"{max(r['training_seconds'] for r in runs):.0f} s; peak memory {max(r['peak_gib'] for r in runs):.2f} GiB"
    )


if __name__ == "__main__":
    main(tyro.cli(Args))
