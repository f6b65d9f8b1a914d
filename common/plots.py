"""The curves of a run, in colors that survive color blindness (Okabe and Ito, 2008)."""

import json
from pathlib import Path

from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, PURPLE, GRAY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#666666"

# The same color and line for the same method everywhere.
METHOD_STYLES = {
    "reinforce": (GRAY, "-"),
    "rloo": (GRAY, "--"),
    "ppo": ("#000000", "-"),
    "grpo": (BLUE, "-"),
    "dr_grpo": (BLUE, "--"),
    "dapo": (ORANGE, "-"),
    "cispo": (ORANGE, "--"),
    "gspo": (GREEN, "-"),
    "gmpo": (GREEN, "--"),
    "dppo": (PURPLE, "-"),
    "maxrl": (RED, "-"),
}

# Each panel: title, unit of the y axis, and its lines as (metric, label, color).
PANELS = [
    ("Accuracy", "share of responses", [("accuracy", "training", BLUE), ("eval/avg", "held out", ORANGE)]),
    ("Reward", "mean per response", [("reward", "reward", BLUE), ("no_signal", "groups without signal", GRAY)]),
    ("Response length", "tokens", [("length_right", "right", GREEN), ("length_wrong", "wrong", RED)]),
    ("Entropy", "nats per token", [("entropy", "full vocabulary", BLUE)]),
    ("Ratio before clipping", "new / old", [("ratio_max", "max", RED), ("ratio", "mean", BLUE), ("ratio_min", "min", GREEN)]),
    ("Clipped tokens", "share of the loss weight", [("clip_pos", "advantage > 0", GREEN), ("clip_neg", "advantage < 0", RED)]),
    ("Sampler / learner mismatch", "|Δp| per token", [("mismatch_max", "max", RED), ("mismatch_mean", "mean", BLUE)]),
    ("Gradient norm", "before clipping", [("grad_norm", "norm", BLUE)]),
]  # fmt: skip


def read_metrics(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


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
                axes.plot(steps, values, label=label, color=color, marker="o" if metric == "eval/avg" else None)
        axes.set(title=name, xlabel="step", ylabel=unit)
        axes.grid(alpha=0.3)
        if name == "Accuracy":
            axes.set_ylim(0, 1)
        if axes.lines:
            axes.legend(fontsize="small")
    figure.savefig(run_dir / "curves.png", dpi=100)
