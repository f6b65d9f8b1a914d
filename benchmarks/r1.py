"""R1's five stages on the embedded default, with a student at the end: held-out accuracy after each stage.

    python -m benchmarks.r1            # the seeds that reports/ lacks, two at a time, about half an hour on two cores
    python -m benchmarks.r1 --redraw   # only the table

The results go to reports/r1.json and to R1's table in reports/methods.md.
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.methods import PAGE
from common.metrics import evaluations, read_metrics
from tools.reports import read_report, replace_table, today, write_report
from tools.scripts import ROOT
from tools.stats import written

import tyro

FLAGS = "--stages cold-start rl rejection rl distill --steps 40"
KEPT = ("step", "eval/avg", "eval/greedy", "eval/length_correct")


@dataclass
class Args:
    seeds: int = 3
    """Seeds 1 to so many."""
    jobs: int = 2
    """Runs at a time, with one thread each."""
    redraw: bool = False
    """Only write the table again."""


def run(seed: int) -> dict[str, Any]:
    """Run all stages with one seed; for each, the evaluations before its first step and after its last."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        command = [sys.executable, "recipes/r1.py", *FLAGS.split(), "--seed", str(seed), "--run-dir", str(folder)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        stages = {}
        for stage in sorted(folder.glob("[0-9]-*/")):
            rows = evaluations(read_metrics(stage))
            stages[stage.name] = [{key: rows[step].get(key) for key in KEPT} for step in (min(rows), max(rows))]
        solutions = {path.stem: len(path.read_text().splitlines()) for path in folder.glob("*.jsonl")}
    after = ", ".join(f"{stage} {rows[1]['eval/avg']:.3f}" for stage, rows in stages.items())
    print(f"seed {seed}: {after}", flush=True)
    return {"seed": seed, "flags": FLAGS, "date": today(), "solutions": solutions, "stages": stages}


def table(runs: list[dict[str, Any]]) -> str:
    """One line per stage: means over the seeds, with 95 % intervals for the accuracy after the stage."""
    lines = [
        "| R1's stage | updates | avg@16 before | avg@16 after | greedy | length correct |",
        "|---|---|---|---|---|---|",
    ]
    for stage in runs[0]["stages"]:
        before, after = zip(*(r["stages"][stage] for r in runs), strict=True)
        updates = after[0]["step"] * (4 if stage.endswith("-rl") else 1)
        accuracies = written([row["eval/avg"] for row in after])
        means = (fmean(row[key] for row in rows) for rows, key in ((before, "eval/avg"), (after, "eval/greedy")))
        start, greedy = (f"{mean:.3f}" for mean in means)
        length = fmean(row["eval/length_correct"] for row in after)
        cells = [stage, str(updates), start, accuracies, greedy, f"{length:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(args: Args) -> None:
    runs = read_report("r1", [])
    if not args.redraw:
        missing = sorted(set(range(1, args.seeds + 1)) - {r["seed"] for r in runs})
        with ThreadPoolExecutor(args.jobs) as pool:
            for done in pool.map(run, missing):
                runs = sorted([*runs, done], key=lambda r: r["seed"])
                write_report("r1", runs)
    replace_table(PAGE, "| R1's stage |", table(runs))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
