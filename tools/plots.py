"""The curves of one run, or of several runs in one picture, in colors for the color-blind (Okabe and Ito, 2008):

    python -m tools.plots RUN RUN ... --out runs.png

Runs that differ only in the seed are drawn as one: a line for their mean and a band from the lowest to the highest.
The command also prints a table of accuracies; the final one has a 95 % interval over the seeds.
"""

import io
import json
import statistics
import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from common.cli import fail, flag, say
from common.folders import read_config, write_whole
from common.help import parse_args
from common.metrics import read_metrics
from tools.stats import aligned, interval

import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

BLUE, ORANGE, GREEN, RED, PURPLE, GRAY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#666666"
COLORS, LINES, MARKERS = (GRAY, BLUE, ORANGE, GREEN, RED, PURPLE, "black"), ("-", "--", ":", "-."), "os^vDPX*<>"


class Style(NamedTuple):
    """How to draw a line."""

    color: str
    line: str
    marker: str = ""


# The eleven methods at the top level.
FIXED = {
    "reinforce": Style(GRAY, "-"),
    "grpo": Style(BLUE, "-"),
    "rloo": Style(ORANGE, "-"),
    "cispo": Style(GREEN, "-"),
    "dapo": Style(RED, "-"),
    "dppo": Style(PURPLE, "-"),
    "dr_grpo": Style("black", "-"),
    "gmpo": Style(GRAY, "--"),
    "gspo": Style(BLUE, "--"),
    "maxrl": Style(ORANGE, "--"),
    "ppo": Style(GREEN, "--"),
}


def method_style(name: str) -> Style:
    """The style of a method, the same in every picture. It depends on the name alone, so two may share one."""
    if name in FIXED:
        return FIXED[name]
    rest, color = divmod(zlib.crc32(name.encode()), len(COLORS))
    rest, line = divmod(rest, len(LINES))
    return Style(COLORS[color], LINES[line], MARKERS[rest % len(MARKERS)])


def panel(axes: Axes, title: str, xlabel: str, ylabel: str, **more: Any) -> None:
    """Title, labels and grid, the same in every picture; `more` goes to `Axes.set`."""
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel, **more)
    axes.title.set_fontsize("medium")
    axes.grid(alpha=0.3)


def draw_intervals(axes: Axes, values: dict[str, list[float]], colors: Iterable[str]) -> None:
    """A row per setting, from the top down: a pale point for each seed, then the mean with its 95 % interval."""
    for row, (of_row, color) in enumerate(zip(values.values(), colors, strict=False)):
        axes.plot(of_row, [row] * len(of_row), "o", color=color, alpha=0.35, markersize=4)
        mean, half = interval(of_row)
        axes.errorbar(mean, row, xerr=half, fmt="o", color=color, capsize=4)
    axes.set(yticks=range(len(values)), yticklabels=values, ylim=(len(values) - 0.5, -0.5))


# Each panel: title, unit of the y axis, and its lines as (metric, label, color).
PANELS = [
    ("Accuracy", "fraction of responses", [("accuracy", "training", BLUE), ("eval/avg", "held out", ORANGE)]),
    ("Reward", "mean per response", [("reward", "reward", BLUE), ("zero_std_groups", "groups without signal", GRAY)]),
    ("Response length", "tokens", [("length_correct", "correct", GREEN), ("length_incorrect", "incorrect", RED)]),
    ("Entropy", "nats per token", [("entropy", "full vocabulary", BLUE)]),
    ("Ratio before clipping", "new / old", [("ratio_max", "max", RED), ("ratio", "mean", BLUE), ("ratio_min", "min", GREEN)]),
    ("Clipped tokens", "fraction of the loss weight", [("clip_pos", "advantage > 0", GREEN), ("clip_neg", "advantage < 0", RED)]),
    ("Engine / learner mismatch", "|Δp| per token", [("mismatch_max", "max", RED), ("mismatch_mean", "mean", BLUE)]),
    ("Gradient norm", "before clipping", [("grad_norm", "norm", BLUE)]),
]  # fmt: skip
# A third row, for worlds that measure what responses do.
BEHAVIOR_PANELS = [
    ("Attempts", "per response", [("eval/behavior/attempts", "attempts", BLUE)]),
    ("Search", "fraction", [("eval/behavior/repeated_attempts", "attempts made before", RED), ("eval/behavior/backtracking", "no, then another attempt", GREEN)]),
    ("Correct lines", "fraction", [("eval/behavior/correct_results", "running results", BLUE), ("eval/behavior/correct_yes", "yes", GREEN), ("eval/behavior/correct_no", "no", RED)]),
    ("Direction", "fraction", [("eval/behavior/nearer", "next attempt is nearer to the target", BLUE)]),
]  # fmt: skip


def series(rows: list[dict], metric: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, where it was recorded."""
    points = [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]
    return [step for step, _ in points], [value for _, value in points]


def draw_curves(run_dir: Path, title: str) -> None:
    """Write `curves.png` into a run folder from its `metrics.jsonl`."""
    rows = read_metrics(run_dir)
    panels = PANELS + (BEHAVIOR_PANELS if any("eval/behavior/attempts" in row for row in rows) else [])
    figure = Figure(figsize=(16, 3.5 * len(panels) / 4), layout="constrained")
    figure.suptitle(title)
    for axes, (name, unit, lines) in zip(figure.subplots(len(panels) // 4, 4).flat, panels, strict=True):
        for metric, label, color in lines:
            steps, values = series(rows, metric)
            if steps:
                # Evaluations are rare, so they are points.
                points = {"marker": "o", "linestyle": "none"} if metric.startswith("eval/") else {}
                axes.plot(steps, values, label=label, color=color, **points)
        panel(axes, name, "step", unit)
        if name == "Accuracy":
            axes.set_ylim(0, 1)
        if axes.lines:
            axes.legend(fontsize="small")
    picture = io.BytesIO()
    figure.savefig(picture, dpi=100)
    write_whole(run_dir / "curves.png", picture.getvalue())  # someone may be looking at it


@dataclass
class Args:
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    out: Path = Path("runs.png")
    """The picture."""


# Each panel of several runs: title, unit, and its metrics. A metric is a line, an evaluation a row of points.
OVERLAY = [
    ("Accuracy (points: held out)", "fraction of responses", ("accuracy", "eval/avg")),
    ("Reward", "mean per response", ("reward",)),
    ("Response length", "tokens", ("length",)),
    ("Entropy", "nats per token", ("entropy",)),
]
UNGROUPED = {"seed", "run_dir", "resume", "save_every", "track"}  # runs of one group may differ in these settings


@dataclass
class Group:
    """Runs that differ only in the seed."""

    method: str
    args: dict[str, Any]
    logs: dict[int, list[dict]]  # by seed
    label: str = ""


def draw_seeds(axes: Axes, logs: list[list[dict]], metric: str, style: Style) -> None:
    """Mean and range of several runs at the steps that all have; evaluations are points."""
    of_run = [dict(zip(*series(log, metric), strict=True)) for log in logs]
    steps = sorted(set.intersection(*map(set, of_run)))
    values = [[mine[step] for mine in of_run] for step in steps]
    mean, low, high = ([f(v) for v in values] for f in (statistics.mean, min, max))
    if metric.startswith("eval/"):
        errors = [[m - x for m, x in zip(mean, low, strict=True)], [x - m for m, x in zip(mean, high, strict=True)]]
        axes.errorbar(steps, mean, errors, color=style.color, fmt=style.marker or "o", markersize=4)
    else:
        axes.plot(steps, mean, **drawn(style))
        axes.fill_between(steps, low, high, color=style.color, alpha=0.2)


def grouped(folders: tuple[Path, ...]) -> list[Group]:
    """The runs in these folders, grouped by method and settings, in the given order."""
    groups: dict[str, Group] = {}
    for folder in folders:
        config = read_config(folder, str(folder))
        if config["method"] == "evaluate":
            fail(f"{folder} is an evaluation and has no curves: read its results.json instead.")
        log = read_metrics(folder) if (folder / "metrics.jsonl").exists() else []
        if not log:
            fail(f"{folder} has logged no steps yet: leave it out.")
        args = {name: value for name, value in config["args"].items() if name not in UNGROUPED}
        group = groups.setdefault(json.dumps([config["method"], args]), Group(config["method"], args, {}))
        seed = config["args"].get("seed")
        if seed in group.logs:
            fail(f"{folder} has the same seed {seed} and settings as another run: leave one of them out.")
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


def drawn(style: Style) -> dict[str, Any]:
    """A style as `Axes.plot` takes it; a line has at most ten markers or so."""
    return {"color": style.color, "linestyle": style.line, "marker": style.marker, "markevery": 0.1, "markersize": 4}


def styles(groups: list[Group]) -> list[Style]:
    """The style of each group: its method's, unless two would look the same."""
    own = [method_style(group.method) for group in groups]
    if len(set(own)) == len(own):
        return own
    plain = [Style(color, line, marker) for marker in ("", *MARKERS) for line in LINES for color in COLORS]
    return [plain[i % len(plain)] for i in range(len(groups))]


def overlay(groups: list[Group]) -> Figure:
    """Accuracy, reward, length and entropy of all groups."""
    figure = Figure(figsize=(12, 7), layout="constrained")
    for axes, (title, unit, metrics) in zip(figure.subplots(2, 2).flat, OVERLAY, strict=True):
        for group, style in zip(groups, styles(groups), strict=True):
            for metric in metrics:
                draw_seeds(axes, list(group.logs.values()), metric, style)
        panel(axes, title, "step", unit)
    pairs = zip(groups, styles(groups), strict=True)
    handles = [Line2D([], [], label=group.label, **drawn(style)) for group, style in pairs]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    figure.suptitle("Mean and range (lowest to highest) over the seeds")
    return figure


def table(groups: list[Group]) -> str:
    """One line per group: accuracy at the first and the last evaluation, steps, and seconds in all stages."""
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
        fail("no run folders are given: python -m tools.plots RUN RUN ...")
    groups = grouped(args.runs)
    figure = overlay(groups)
    if args.out.suffix[1:] not in figure.canvas.get_supported_filetypes():
        fail(f"--out {args.out} is not a picture: its name must end in .png, .pdf or .svg.")
    try:
        figure.savefig(args.out, dpi=100)
    except OSError as error:
        fail(f"--out {args.out} cannot be written: {error.strerror}.")
    say(table(groups) + f"\n\npicture  {args.out}", keep="\n")


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
