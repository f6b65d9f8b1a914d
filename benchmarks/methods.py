"""Every method and recipe on the embedded default, with the same settings and steps and three seeds each.

    python -m benchmarks.methods            # makes the runs that reports/ lacks, two at a time, then draws
    python -m benchmarks.methods --redraw   # only the table and the picture

Each method keeps its paper's defaults (clip bounds, aggregation, reward); nothing is tuned. A method that needs a
teacher gets the model after equally many steps of grpo.py with seed 1, kept in runs/. The results go to
reports/methods.json, reports/methods.png and the table of reports/methods.md.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from common.checkpoints import checkpoints
from common.cli import fail
from common.metrics import read_metrics
from tools.plots import BLUE, GREEN, ORANGE, draw_intervals, panel
from tools.reports import REPORTS, read_report, replace_table, today, write_report
from tools.scripts import FOLDERS, ROOT, command, load, parents, script_path
from tools.stats import written

import tyro
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

PAGE = REPORTS / "methods.md"
KEPT = {  # the logged metrics to compare
    "step",
    "eval/avg",
    "eval/greedy",
    "eval/pass@16",
    "eval/length_correct",
    "eval/length_incorrect",
    "length",
    "entropy",
    "sampled_prompts",
}


@dataclass
class Args:
    steps: int = 40
    """Rollout batches of each run."""
    seeds: int = 3
    """Number of seeds, from 1 on."""
    jobs: int = 2
    """Runs at a time, with one thread each."""
    redraw: bool = False
    """Only draw the table and the picture again."""


def run(method: str, seed: int, steps: int, flags: tuple[str, ...] = (), kept: set[str] = KEPT) -> dict:
    """One run in its own process with one thread: the compared part of its log, and its wall time."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, *command(script_path(method)), "--engine", "transformers", "--eval-every", "10"]
        arguments += ["--steps", str(steps), "--seed", str(seed), "--run-dir", f"{folder}/run", *flags]
        start = time.perf_counter()
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(arguments, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
        rows = read_metrics(Path(folder) / "run")
        versions = json.loads((Path(folder) / "run" / "config.json").read_text())["versions"]
    print(f"{method} seed {seed}: {rows[0]['eval/avg']:.3f} -> {rows[-1]['eval/avg']:.3f}, {seconds:.0f} s", flush=True)
    log = [{key: value for key, value in row.items() if key in kept and value is not None} for row in rows]
    return {"method": method, "seed": seed, "seconds": seconds, "versions": versions, "date": today(), "log": log}


def needed(method: str, steps: int) -> tuple[str, ...]:
    """Flags that a script cannot run without."""
    if not hasattr(load(method).Args, "teacher"):
        return ()
    folder = ROOT / "runs" / f"teacher-{steps}"
    if not (folder / f"checkpoint-{steps:06d}").exists():
        given = ["--resume", str(folder)] if folder.exists() else ["--steps", str(steps), "--run-dir", str(folder)]
        subprocess.run([sys.executable, "grpo.py", "--engine", "transformers", *given], cwd=ROOT, check=True)
    return "--teacher", str(checkpoints(folder)[-1])


def require_steps(report: str, runs: list[dict], steps: int) -> None:
    """End the program if a report holds runs of another length."""
    if other := {r["log"][-1]["step"] for r in runs} - {steps}:
        fail(f"reports/{report}.json holds runs of {other.pop()} steps: pass --steps with that number, or remove it.")


def finals(runs: list[dict]) -> dict[str, list[float]]:
    """Each run's final held-out accuracy, by method; methods with only one run are left out."""
    by_method = {name: [r["log"][-1]["eval/avg"] for r in runs if r["method"] == name] for name in parents()}
    return {name: values for name, values in by_method.items() if len(values) > 1}


def table(runs: list[dict]) -> str:
    """One line per method, from the last evaluation of each run."""
    lines = [
        "| method | avg@16 before | avg@16 after | greedy | pass@16 | length correct | length incorrect | entropy "
        "| prompts per step |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for method, after in finals(runs).items():
        mine = [r for r in runs if r["method"] == method]
        last = [r["log"][-1] for r in mine]

        def mean(key: str, rows: list[dict] = last) -> float:
            return statistics.mean(row[key] for row in rows)

        sampled = statistics.mean(row.get("sampled_prompts", 32) for r in mine for row in r["log"][1:])
        lines.append(
            f"| {method} | {mine[0]['log'][0]['eval/avg']:.3f} | {written(after)} | {mean('eval/greedy'):.3f} "
            f"| {mean('eval/pass@16'):.3f} | {mean('eval/length_correct'):.1f} | {mean('eval/length_incorrect'):.1f} "
            f"| {mean('entropy'):.3f} | {sampled:.0f} |"
        )
    return "\n".join(lines) + "\n"


def draw(runs: list[dict]) -> Figure:
    """One row per method, sorted by mean: each seed's accuracy, and the mean with its interval."""
    values = dict(sorted(finals(runs).items(), key=lambda item: -statistics.mean(item[1])))
    folders = dict(zip(FOLDERS, (("top level", BLUE), ("methods/", ORANGE), ("recipes/", GREEN)), strict=True))
    figure = Figure(figsize=(7, 0.8 + 0.24 * len(values)), layout="constrained")
    axes = figure.subplots()
    draw_intervals(axes, values, [folders[script_path(name).parent][1] for name in values])
    steps, seeds = runs[0]["log"][-1]["step"], max(map(len, values.values()))
    title = f"Held-out accuracy after {steps} steps: {seeds} seeds, their mean and its 95 % interval"
    panel(axes, title, "avg@16 on 256 problems", "")
    handles = [Line2D([], [], marker="o", linestyle="", color=color, label=name) for name, color in folders.values()]
    axes.legend(handles=handles, loc="lower right")
    return figure


def main(args: Args) -> None:
    runs = read_report("methods", [])
    require_steps("methods", runs, args.steps)
    if not args.redraw:
        known = {(r["method"], r["seed"]) for r in runs}
        plan = [(method, seed) for seed in range(1, args.seeds + 1) for method in parents()]
        plan = [job for job in plan if job not in known]
        flags = {method: needed(method, args.steps) for method, _ in plan}

        def one(job: tuple[str, int]) -> dict:
            return run(*job, args.steps, flags[job[0]])

        with ThreadPoolExecutor(args.jobs) as pool:
            for r in pool.map(one, plan):
                runs.append(r)
                write_report("methods", runs)
    replace_table(PAGE, "| method |", table(runs))
    draw(runs).savefig(REPORTS / "methods.png", dpi=90)
    print(table(runs))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
