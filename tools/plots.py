"""The curves of a run, in colors that survive color blindness (Okabe and Ito, 2008), and of several beside each other:

    python -m tools.plots RUN RUN ... --out runs.png

Runs that differ in nothing but the seed are drawn as one: a line for their mean and a band from the lowest to the
highest. The table that is printed has their accuracies, the last one with its 95 % interval over the seeds.
"""

import json
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.cli import fail, flag
from common.folders import read_config
from common.help import parse_args
from common.terminal import aligned
from tools.scripts import ROOT, parents, script_path
from tools.stats import interval

import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

BLUE, ORANGE, GREEN, RED, PURPLE, GRAY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#666666"
COLORS, LINES = (GRAY, BLUE, ORANGE, GREEN, RED, PURPLE, "black"), ("-", "--", ":", "-.")


def method_style(name: str) -> tuple[str, str]:
    """Color and line of a method, the same in every picture; no two methods share both."""
    # The methods at the top level first: their looks stay when another is added.
    line, color = divmod(sorted(parents(), key=lambda n: script_path(n).parent != ROOT).index(name), len(COLORS))
    return COLORS[color], LINES[line]


# Each panel: title, unit of the y axis, and its lines as (metric, label, color).
PANELS = [
    ("Accuracy", "share of responses", [("accuracy", "training", BLUE), ("eval/avg", "held out", ORANGE)]),
    ("Reward", "mean per response", [("reward", "reward", BLUE), ("zero_std_groups", "groups without signal", GRAY)]),
    ("Response length", "tokens", [("length_correct", "correct", GREEN), ("length_wrong", "wrong", RED)]),
    ("Entropy", "nats per token", [("entropy", "full vocabulary", BLUE)]),
    ("Ratio before clipping", "new / old", [("ratio_max", "max", RED), ("ratio", "mean", BLUE), ("ratio_min", "min", GREEN)]),
    ("Clipped tokens", "share of the loss weight", [("clip_pos", "advantage > 0", GREEN), ("clip_neg", "advantage < 0", RED)]),
    ("Sampler / learner mismatch", "|Δp| per token", [("mismatch_max", "max", RED), ("mismatch_mean", "mean", BLUE)]),
    ("Gradient norm", "before clipping", [("grad_norm", "norm", BLUE)]),
]  # fmt: skip


def read_metrics(run_dir: Path) -> list[dict]:
    """What a run logged, a row for each step; a line cut by a kill is passed over."""
    rows: dict[int, dict] = {}
    for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
            rows.setdefault(row["step"], {}).update(row)
        except (ValueError, TypeError, KeyError):
            continue
    return [rows[step] for step in sorted(rows)]


def series(rows: list[dict], metric: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, where it was recorded."""
    points = [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]
    return [step for step, _ in points], [value for _, value in points]


def draw_curves(run_dir: Path, title: str) -> None:
    """Write `curves.png` into a run folder from its `metrics.jsonl`."""
    rows = read_metrics(run_dir)
    figure = Figure(figsize=(16, 7), layout="constrained")
    figure.suptitle(title)
    for axes, (name, unit, lines) in zip(figure.subplots(2, 4).flat, PANELS, strict=True):
        for metric, label, color in lines:
            steps, values = series(rows, metric)
            if steps:
                # Evaluations are few and far between: points, without a line through what nobody measured.
                points = {"marker": "o", "linestyle": "none"} if metric.startswith("eval/") else {}
                axes.plot(steps, values, label=label, color=color, **points)
        axes.set(title=name, xlabel="step", ylabel=unit)
        axes.grid(alpha=0.3)
        if name == "Accuracy":
            axes.set_ylim(0, 1)
        if axes.lines:
            axes.legend(fontsize="small")
    figure.savefig(run_dir / "curves.png", dpi=100)


@dataclass
class Args:
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    out: Path = Path("runs.png")
    """The picture."""


# Each panel of several runs: title, unit, and its metrics, a line or, of evaluations, points.
OVERLAY = [
    ("Accuracy (points: held out)", "share of responses", ("accuracy", "eval/avg")),
    ("Reward", "mean per response", ("reward",)),
    ("Response length", "tokens", ("length",)),
    ("Entropy", "nats per token", ("entropy",)),
]
OF_NO_CONSEQUENCE = {"seed", "run_dir", "resume", "save_every", "track"}  # settings that make no other group


@dataclass
class Group:
    """Runs that differ in their seed alone."""

    method: str
    args: dict[str, Any]
    logs: dict[int, list[dict]]  # by seed
    label: str = ""


def draw_seeds(axes: Axes, logs: list[list[dict]], metric: str, color: str, line: str = "-") -> None:
    """Mean and range of several runs, at the steps that all have; evaluations, few and far between, as points."""
    of_run = [dict(zip(*series(log, metric), strict=True)) for log in logs]
    steps = sorted(set.intersection(*map(set, of_run)))
    values = [[mine[step] for mine in of_run] for step in steps]
    mean, low, high = ([f(v) for v in values] for f in (statistics.mean, min, max))
    if metric.startswith("eval/"):
        errors = [[m - x for m, x in zip(mean, low, strict=True)], [x - m for m, x in zip(mean, high, strict=True)]]
        axes.errorbar(steps, mean, errors, color=color, fmt="o", markersize=4)
    else:
        axes.plot(steps, mean, color=color, linestyle=line)
        axes.fill_between(steps, low, high, color=color, alpha=0.2)


def grouped(folders: tuple[Path, ...]) -> list[Group]:
    """The runs in these folders, by method and settings, in the order in which they are named."""
    groups: dict[str, Group] = {}
    for folder in folders:
        config = read_config(folder, str(folder))
        if config["method"] == "evaluate":
            fail(f"{folder} is an evaluation: its figures are in results.json, and there is nothing to plot.")
        log = read_metrics(folder) if (folder / "metrics.jsonl").exists() else []
        if not log:
            fail(f"{folder} has logged nothing yet: there is nothing to plot.")
        args = {name: value for name, value in config["args"].items() if name not in OF_NO_CONSEQUENCE}
        group = groups.setdefault(json.dumps([config["method"], args]), Group(config["method"], args, {}))
        seed = config["args"].get("seed")
        if seed in group.logs:
            fail(f"{folder} is the same run as another, with seed {seed} and the same settings: leave one of them out.")
        group.logs[seed] = log
    by_method = defaultdict(list)
    for group in groups.values():
        by_method[group.method].append(group)
    for method, mine in by_method.items():
        names = dict.fromkeys(name for group in mine for name in group.args)
        differ = [name for name in names if len({json.dumps(group.args.get(name)) for group in mine}) > 1]
        for group in mine:
            group.label = " ".join([method, *(f"{flag(name)} {group.args.get(name)}" for name in differ)])
    return list(groups.values())


def styles(groups: list[Group]) -> list[tuple[str, str]]:
    """Color and line of each group: those of its method, where each has another."""
    methods = {group.method for group in groups}
    if len(methods) == len(groups) and methods <= set(parents()):
        return [method_style(group.method) for group in groups]
    return [(COLORS[i % len(COLORS)], LINES[i // len(COLORS) % len(LINES)]) for i in range(len(groups))]


def overlay(groups: list[Group]) -> Figure:
    """Accuracy, reward, length and entropy of all groups."""
    figure = Figure(figsize=(12, 7), layout="constrained")
    for axes, (title, unit, metrics) in zip(figure.subplots(2, 2).flat, OVERLAY, strict=True):
        for group, (color, line) in zip(groups, styles(groups), strict=True):
            for metric in metrics:
                draw_seeds(axes, list(group.logs.values()), metric, color, line)
        axes.set(title=title, xlabel="step", ylabel=unit)
        axes.grid(alpha=0.3)
    looks = zip(groups, styles(groups), strict=True)
    handles = [Line2D([], [], color=color, linestyle=line, label=group.label) for group, (color, line) in looks]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    figure.suptitle("Mean and range (lowest to highest) of the seeds")
    return figure


def table(groups: list[Group]) -> str:
    """A line for each group: accuracy before and at the last evaluation, steps, and seconds in all stages."""
    lines = [["run", "seeds", "base", "final", "steps", "seconds"]]
    for group in groups:
        logs = list(group.logs.values())
        evaluations = [series(log, "eval/avg")[1] for log in logs]
        base = final = "-"
        if all(evaluations):
            base = f"{statistics.mean(values[0] for values in evaluations):.3f}"
            last = [values[-1] for values in evaluations]
            final = f"{last[0]:.3f}" if len(last) == 1 else "{:.3f} ± {:.3f}".format(*interval(last))
        steps = sorted({log[-1]["step"] for log in logs})
        seconds = [sum(v for row in log for k, v in row.items() if k.startswith("seconds/")) for log in logs]
        lines.append(
            [group.label, str(len(logs)), base, final, " to ".join(map(str, dict.fromkeys((steps[0], steps[-1])))),
             f"{statistics.mean(seconds):.0f}"]
        )  # fmt: skip
    return aligned(lines)


def main(args: Args) -> None:
    if not args.runs:
        fail("there is nothing to plot: name run folders, python -m tools.plots RUN RUN ...")
    groups = grouped(args.runs)
    figure = overlay(groups)
    if args.out.suffix[1:] not in figure.canvas.get_supported_filetypes():
        fail(f"--out {args.out}: a picture's name must end in .png, .pdf or .svg.")
    try:
        figure.savefig(args.out, dpi=100)
    except OSError as error:
        fail(f"--out {args.out} cannot be written: {error.strerror}.")
    print(table(groups) + f"\n\npicture  {args.out}")


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
