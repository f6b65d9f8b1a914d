"""R1's five stages on the embedded default, with a student at the end: held-out accuracy after each stage.

    python -m benchmarks.r1            # the seeds that reports/ lacks, two at a time, about half an hour on two cores
    python -m benchmarks.r1 --form     # R1's second reward instead, that for the form of the response: five minutes
    python -m benchmarks.r1 --redraw   # only the tables

The results go to reports/r1.json, reports/r1_form.json and to R1's tables in reports/methods.md.
"""

import json
import os
import random
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
from worlds import generated_problems
from worlds.sums.writers import solution

import tyro

FLAGS = "--stages cold-start rl rejection rl distill --steps 40"
# R1's reward for the form: none, nearly none, and 0.2. All start from SFT on solutions of which half have the form.
FORM = (
    "--stages cold-start rl --cold-start-solutions 1024 --sft-epochs 8 --steps 20 --prompts-per-step 16 "
    "--eval-problems 256 --eval-samples 4 --eval-every 0"
)
WEIGHTS = ("0", "1e-6", "0.2")
KEPT = ("step", "eval/avg", "eval/greedy", "eval/length_correct")


@dataclass
class Args:
    seeds: int = 3
    """Number of seeds."""
    jobs: int = 2
    """Runs at a time, with one thread each."""
    form: bool = False
    """Measure the reward for the form of the response instead of the stages."""
    redraw: bool = False
    """Only write the tables again."""


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


def write_solutions(path: Path, number: int) -> None:
    """Solutions of sums, every other one with its steps between <think> tags."""
    with path.open("w") as file:
        for i, (question, _) in enumerate(generated_problems("sums", "train")[-number:]):
            steps, box = solution(random.Random(0), question, textbook=True).rsplit("\n", 1)
            text = f"<think>\n{steps}\n</think>\n{box}" if i % 2 else f"{steps}\n{box}"
            file.write(json.dumps({"question": question, "solution": text}) + "\n")


def run_form(job: tuple[int, str]) -> dict[str, Any]:
    """The cold start and RL with a seed and a weight of the form's reward; how many responses have the form."""
    seed, weight = job
    with tempfile.TemporaryDirectory() as name:
        folder, file = Path(name) / "run", Path(name) / "solutions.jsonl"
        write_solutions(file, 1024)
        reward = ["--reward", "correct=1", f"docs/rewards/format.py:thinks_first={weight}"]
        command = [sys.executable, "recipes/r1.py", *FORM.split(), *reward, "--cold-start", str(file)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command += ["--seed", str(seed), "--run-dir", str(folder)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        rows = read_metrics(folder / "2-rl")
    in_form = [row["reward/thinks_first"] for row in rows if row["step"] > 0]
    held_out = evaluations(rows)
    found = {"first": fmean(in_form[:2]), "last": fmean(in_form[-5:]), "avg@4": held_out[max(held_out)]["eval/avg"]}
    print(f"seed {seed}, weight {weight}: {found}", flush=True)
    return {"seed": seed, "weight": weight, "flags": FORM, "date": today()} | found


def table_of_form(runs: list[dict[str, Any]]) -> str:
    """One line per weight: means over the seeds with 95 % intervals."""
    lines = ["| weight of the form | in the form, steps 1 and 2 | steps 16 to 20 | avg@4 after |", "|---|---|---|---|"]
    for weight in WEIGHTS:
        cells = [written([run[key] for run in runs if run["weight"] == weight]) for key in ("first", "last", "avg@4")]
        lines.append(f"| {weight} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


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
    runs, forms = read_report("r1", []), read_report("r1_form", [])
    if args.form and not args.redraw:
        known = {(one["seed"], one["weight"]) for one in forms}
        jobs = [(seed, weight) for seed in range(1, args.seeds + 1) for weight in WEIGHTS]
        with ThreadPoolExecutor(args.jobs) as pool:
            forms += pool.map(run_form, [job for job in jobs if job not in known])
        write_report("r1_form", forms)
    elif not args.redraw:
        missing = sorted(set(range(1, args.seeds + 1)) - {r["seed"] for r in runs})
        with ThreadPoolExecutor(args.jobs) as pool:
            for done in pool.map(run, missing):
                runs = sorted([*runs, done], key=lambda r: r["seed"])
                write_report("r1", runs)
    replace_table(PAGE, "| R1's stage |", table(runs))
    replace_table(PAGE, "| weight of the form |", table_of_form(forms))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
