"""The curves of a run, in colors that survive color blindness (Okabe and Ito, 2008)."""

import json
from pathlib import Path

from common.scripts import ROOT, parents, script_path

from matplotlib.figure import Figure

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
