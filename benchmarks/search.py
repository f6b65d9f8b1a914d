"""How a model learns to search: `python grpo.py --model search --dataset search`, seeds 1 to 3.

    python -m benchmarks.search            # about 30 minutes on two cores; started again, it continues
    python -m benchmarks.search --redraw   # only draws, from search.json

reports/search.png shows accuracy, length, attempts and repeated attempts on held-out problems, and what seed 1 writes
for one of them.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from common.cli import fail
from common.metrics import read_metrics
from tools.plots import BLUE, GREEN, ORANGE, RED, panel
from tools.reports import REPORTS, read_report, write_report
from tools.scripts import ROOT
from tools.stats import interval

import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SHOWN = (0, 20, 50, 100)  # steps
# Title, unit, evaluation metric, color.
PANELS = [
    ("Accuracy", "avg@n", "eval/avg", BLUE),
    ("Response length", "tokens", "length", ORANGE),
    ("Attempts", "per response", "eval/behavior/attempts", GREEN),
    ("Repeated attempts", "fraction of attempts", "eval/behavior/repeated_attempts", RED),
]


@dataclass
class Args:
    seeds: int = 3
    """Number of seeds."""
    folder: Path = Path("runs/search")
    """Folder of the runs."""
    redraw: bool = False
    """Only draw again."""


def run(seed: int, folder: Path) -> dict:
    """A run's log, and its response to the first held-out problem at each evaluation."""
    settings = ["--model", "search", "--dataset", "search", "--seed", str(seed), "--eval-every", "5"]
    start = ["--resume", str(folder)] if (folder / "config.json").exists() else [*settings, "--run-dir", str(folder)]
    subprocess.run([sys.executable, "grpo.py", *start], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    samples = {int(path.stem.removeprefix("step-")): first_response(path) for path in (folder / "samples").iterdir()}
    return {"seed": seed, "log": read_metrics(folder), "samples": dict(sorted(samples.items()))}


def first_response(path: Path) -> list[str]:
    """The first prompt and response in a file of samples."""
    return [text.strip("\n") for text in re.findall(r"```text\n(.*?)\n```", path.read_text(), re.DOTALL)[:2]]


def draw_seeds(axes: Axes, runs: list[dict], metric: str, color: str) -> None:
    """The seeds' mean with its 95 % interval, and a pale line for each seed."""
    lines = [[(row["step"], row[metric]) for row in r["log"] if row.get(metric) is not None] for r in runs]
    for line in lines:
        axes.plot(*zip(*line, strict=True), color=color, alpha=0.3, linewidth=1)
    means, halves = zip(*(interval([value for _, value in at]) for at in zip(*lines, strict=True)), strict=True)
    steps = [step for step, _ in lines[0]]
    axes.plot(steps, means, color=color)
    low, high = ([m + sign * h for m, h in zip(means, halves, strict=True)] for sign in (-1, 1))
    axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)


def draw(runs: list[dict]) -> None:
    figure = Figure(figsize=(16, 7), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[3, 2])
    for axes, (title, unit, metric, color) in zip(left.subplots(2, 2).flat, PANELS, strict=True):
        draw_seeds(axes, runs, metric, color)
        panel(axes, title, "step", unit, **({"ylim": (0, 1)} if "eval/avg" in metric else {"ylim": (0, None)}))
    samples = {int(step): text for step, text in runs[0]["samples"].items()}
    right.suptitle(f"{samples[0][0]}   (seed 1)", family="monospace")
    for axes, step in zip(right.subplots(2, 2).flat, SHOWN, strict=True):
        axes.set_axis_off()
        axes.set_title(f"step {step}", fontsize="medium", loc="left")
        axes.text(0, 1, samples[step][1], family="monospace", fontsize=9, va="top", transform=axes.transAxes)
    left.suptitle(f"python grpo.py --model search --dataset search, {len(runs)} seeds with 95 % intervals")
    figure.savefig(REPORTS / "search.png", dpi=100)


def main(args: Args) -> None:
    if args.seeds < 2:
        fail("--seeds: an interval takes at least 2.")
    if not args.redraw:
        runs = [run(seed, args.folder / f"seed{seed}") for seed in range(1, args.seeds + 1)]
        write_report("search", runs)
    runs = read_report("search")
    draw(runs)
    for metric in ("eval/avg", "eval/greedy", *(name for _, _, name, _ in PANELS[2:])):
        for step in SHOWN:
            found = [row[metric] for r in runs for row in r["log"] if row["step"] == step and metric in row]
            print(f"{metric:32s} step {step:3d}  {' '.join(f'{value:.3f}' for value in found)}")


if __name__ == "__main__":
    main(tyro.cli(Args))
