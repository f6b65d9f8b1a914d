"""Every method and recipe on the embedded default: same settings, same steps, three seeds each.

    python -m benchmarks.methods            # runs what methods.json does not have, two runs at a time, then draws
    python -m benchmarks.methods --redraw   # only the table and the picture, from methods.json

A method keeps its paper's own defaults (clip bounds, aggregation, reward), nothing is tuned. Where one needs a teacher,
it is the model after as many steps of grpo.py with seed 1, in runs/. The figures land in reports/methods.json,
reports/methods.png and the table of reports/methods.md.
"""

import itertools
import json
import math
import os
import re
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
from tools.plots import BLUE, GRAY, draw_seeds, read_metrics
from tools.scripts import ROOT, command, load, parents, script_path
from tools.stats import interval

import tyro
from matplotlib.figure import Figure

HERE = Path(__file__).parent
SCRIPTS = list(parents())
KEPT = {  # what is compared, of all that a run logs
    "step",
    "eval/avg",
    "eval/greedy",
    "eval/pass@16",
    "eval/length_correct",
    "eval/length_wrong",
    "length",
    "entropy",
    "sampled_prompts",
}


@dataclass
class Args:
    steps: int = 40
    """Rollout batches of each run."""
    seeds: int = 3
    """Seeds 1 to so many."""
    jobs: int = 2
    """Runs at a time, with one thread each."""
    redraw: bool = False
    """Only draw the table and the picture again."""


def run(method: str, seed: int, steps: int, flags: tuple[str, ...] = (), kept: set[str] = KEPT) -> dict:
    """One run in a process of its own, with one thread: its log without what is not compared, and its wall time."""
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
    return {"method": method, "seed": seed, "seconds": seconds, "versions": versions, "log": log}


def needed(method: str, steps: int) -> tuple[str, ...]:
    """Flags without which a script does not run."""
    if not hasattr(load(method).Args, "teacher"):
        return ()
    folder = ROOT / "runs" / f"teacher-{steps}"
    if not (folder / f"checkpoint-{steps:06d}").exists():
        given = ["--resume", str(folder)] if folder.exists() else ["--steps", str(steps), "--run-dir", str(folder)]
        subprocess.run([sys.executable, "grpo.py", "--engine", "transformers", *given], cwd=ROOT, check=True)
    return "--teacher", str(checkpoints(folder)[-1])


def compared(runs: list[dict]) -> list[str]:
    """The methods that there are several runs of."""
    return [method for method in SCRIPTS if sum(r["method"] == method for r in runs) > 1]


def table(runs: list[dict]) -> str:
    """One line per method, the last evaluation of each run."""
    lines = [
        "| method | avg@16 before | avg@16 after | greedy | pass@16 | length correct | length wrong | entropy "
        "| prompts per step |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for method in compared(runs):
        mine = [r for r in runs if r["method"] == method]
        last = [r["log"][-1] for r in mine]

        def mean(key: str, rows: list[dict] = last) -> float:
            return statistics.mean(row[key] for row in rows)

        after, half = interval([row["eval/avg"] for row in last])
        before = mine[0]["log"][0]["eval/avg"]
        sampled = statistics.mean(row.get("sampled_prompts", 32) for r in mine for row in r["log"][1:])
        lines.append(
            f"| {method} | {before:.3f} | {after:.3f} ± {half:.3f} | {mean('eval/greedy'):.3f} "
            f"| {mean('eval/pass@16'):.3f} | {mean('eval/length_correct'):.1f} | {mean('eval/length_wrong'):.1f} "
            f"| {mean('entropy'):.3f} | {sampled:.0f} |"
        )
    return "\n".join(lines) + "\n"


def draw(runs: list[dict]) -> None:
    """A panel for each method, beside GRPO in gray: mean and range of the seeds."""
    others = [method for method in compared(runs) if method != "grpo"]
    columns = 5
    rows = math.ceil(len(others) / columns)
    figure = Figure(figsize=(2.2 * columns, 1.8 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat
    for i, (axes, method) in enumerate(itertools.zip_longest(panels, others)):
        if method is None:
            axes.axis("off")
            continue
        axes.tick_params(labelbottom=i + columns >= len(others))  # where no panel is below
        for name, color in (("grpo", GRAY), (method, BLUE)):
            draw_seeds(axes, [r["log"] for r in runs if r["method"] == name], "eval/avg", color)
        axes.set_title(method, color=BLUE, fontsize="medium")
        axes.grid(alpha=0.3)
    figure.supxlabel("step (a rollout batch of 256 responses)")
    figure.supylabel("held-out accuracy")
    figure.suptitle("Each method beside GRPO (gray) at the default settings: mean and range of the seeds")
    figure.savefig(HERE / "methods.png", dpi=80)


def main(args: Args) -> None:
    results = HERE / "methods.json"
    runs = json.loads(results.read_text()) if results.exists() else []
    if other := {r["log"][-1]["step"] for r in runs} - {args.steps}:
        fail(f"{results} holds runs of {other.pop()} steps: go on with as many, or move it away.")
    if not args.redraw:
        done = {(r["method"], r["seed"]) for r in runs}
        jobs = [(method, seed) for seed in range(1, args.seeds + 1) for method in SCRIPTS]
        plan = [job for job in jobs if job not in done]
        flags = {method: needed(method, args.steps) for method, _ in plan}

        def one(job: tuple[str, int]) -> dict:
            return run(*job, args.steps, flags[job[0]])

        with ThreadPoolExecutor(args.jobs) as pool:
            for r in pool.map(one, plan):
                runs.append(r)
                results.write_text("[\n" + ",\n".join(json.dumps(r) for r in runs) + "\n]\n")
    page = ROOT / "docs" / "methods.md"
    page.write_text(re.sub(r"\| method \|.*?\n(?=\n)", table(runs), page.read_text(), flags=re.DOTALL))
    draw(runs)
    print(table(runs))


if __name__ == "__main__":
    main(tyro.cli(Args))
