"""Held-out accuracy over time: ScaleRL with a generator in another process, and in turns.

    python -m benchmarks.wall_clock            # about 15 minutes on two idle cores; writes reports/wall_clock.json
    python -m benchmarks.wall_clock --judge 1  # the learner waits a second for the rewards of each batch

All use the same cores. With --overlap, one process generates on half of them while the other trains, on rollouts that
are at most 8 batches old, or 1; in turns, with --staleness 0, each step generates and then trains on all of them. The
world is search. A checkpoint's time is the sum of its steps, without evaluation, which comes after the run.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from common.metrics import read_metrics
from tools.reports import read_report, today, write_report
from tools.scripts import ROOT
from tools.stats import written

import numpy as np
import tyro

WAYS = {"overlap": "--overlap", "overlap, staleness 1": "--overlap --staleness 1", "in turns": "--staleness 0"}
HELD_OUT = "--dataset search --eval-problems 256 --eval-samples 2"
JUDGE = """
import time

def wait(problems, texts, tokens, truncated):
    time.sleep({})
    return [0.0] * len(texts)
"""
RUN = f"--model search {HELD_OUT} --prompts-per-step 16 --eval-every 0"


@dataclass
class Args:
    seeds: int = 2
    """Number of seeds."""
    steps: int = 40
    """Rollout batches of a run."""
    every: int = 10
    """Steps between the checkpoints that are evaluated."""
    judge: float = 0.0
    """Seconds for which a reward function waits in each step, as for a judge on a server; it adds 0 to the reward."""


def python(*command: str) -> None:
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def curve(way: str, seed: int, args: Args) -> list[tuple[float, float]]:
    """Seconds and held-out accuracy at each checkpoint."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = f"{RUN} {WAYS[way]} --seed {seed} --steps {args.steps} --save-every {args.every} --keep 100"
        if args.judge:
            (folder / "judge.py").write_text(JUDGE.format(args.judge))
            flags += f" --reward correct {folder}/judge.py:wait"
        python("recipes/scalerl.py", *flags.split(), "--run-dir", f"{folder}/run")
        spent, found = 0.0, []
        for row in read_metrics(folder / "run")[1:]:
            spent += sum(value for key, value in row.items() if key.startswith("seconds/") and "evaluate" not in key)
            if (step := row["step"]) % args.every == 0:
                flags = (
                    "--dataset search --held-out --eval-problems 256 --eval-samples 2 --k 1 --max-response-tokens 200"
                )
                model = folder / "run" / f"checkpoint-{step:06d}"
                python("-m", "tools.evaluate", "--model", str(model), *flags.split(), "--run-dir", f"{folder}/{step}")
                found.append((spent, json.loads((folder / str(step) / "results.json").read_text())["all"]["avg"]))
        return found


def main(args: Args) -> None:
    curves: dict[str, list[list[tuple[float, float]]]] = {way: [] for way in WAYS}
    for seed in range(1, args.seeds + 1):
        for way in WAYS:
            curves[way].append(curve(way, seed, args))
            print(f"{way}, seed {seed}: {', '.join(f'{a:.3f} at {s:.0f} s' for s, a in curves[way][-1])}", flush=True)
        measured = {"date": today(), "run": f"{RUN} --steps {args.steps}", "ways": WAYS, "curves": curves}
        write_report("wall_clock", read_report("wall_clock", {}) | {f"judge of {args.judge:g} seconds": measured})
    common = min(one[-1][0] for of_way in curves.values() for one in of_way)
    for way, of_way in curves.items():
        seconds = statistics.mean(one[-1][0] for one in of_way)
        then = [np.interp(common, *zip(*one, strict=True)).item() for one in of_way]
        print(f"{way}: {args.steps} steps in {seconds:.0f} s; after {common:.0f} s {written(then, '.3f')}")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
