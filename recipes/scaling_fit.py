"""The sigmoid that ScaleRL fits to accuracy over compute: 2510.13786 (Oct 2025), Eq. 1 and App. A.5.

    R(C) = R_0 + (A - R_0) / (1 + (C_mid / C)^B)

R_0 is the accuracy before training, A the asymptote, C_mid the compute at which half of A - R_0 is gained, and B says
how steep the curve is there. As in the paper, A and C_mid are the pair on a grid, each with its best B, that has the
least squared error. The paper's grid is made for its own runs. Here A goes from nine tenths of the best accuracy to
1, in the paper's steps of 0.005, and C_mid over 100 values from a quarter of the first compute to four times the last,
in equal ratios. The paper leaves its first 1,500 GPU-hours out, and takes A to be known to ±0.02.

    python -m recipes.scaling_fit runs/A runs/B             # a line for each run, and a picture in runs/A
    python -m recipes.scaling_fit runs/A --until 20         # how well the first 20 steps predict the others
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from common.cli import fail, say
from common.help import parse_args
from tools.plots import COLORS, read_metrics

import numpy as np
import tyro
from matplotlib.figure import Figure
from scipy.optimize import OptimizeWarning, curve_fit

FEWEST = 4  # points for three parameters
A_STEP, C_MIDS = 0.005, 100  # of the grid


@dataclass
class Args:
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders. A fit needs four evaluations besides the one before training: lower --eval-every."""
    compute: Literal["steps", "seconds"] = "steps"
    """What accuracy is a function of: rollout batches, or the time that they took."""
    skip: float = 0.0
    """Leave evaluations before this compute out."""
    until: float = np.inf
    """Leave evaluations after this compute out, and compare them with the fit."""


class Fit(NamedTuple):
    A: float
    B: float
    C_mid: float
    error: float  # root of the mean squared error


def sigmoid(compute: np.ndarray, r0: float, a: float, b: float, c_mid: float) -> np.ndarray:
    """Accuracy (N,) after compute (N,): Eq. 1."""
    return r0 + (a - r0) / (1 + (c_mid / compute) ** b)


def fit(compute: np.ndarray, accuracy: np.ndarray, r0: float) -> Fit:
    """The curve with the least squared error through accuracies (N,) after compute (N,) > 0, with R_0 given."""
    first, last = np.floor(0.9 * accuracy.max() / A_STEP), round(1 / A_STEP)
    every_a = A_STEP * np.arange(first, last + 1)
    every_c_mid = np.geomspace(compute.min() / 4, 4 * compute.max(), C_MIDS)
    best = Fit(np.nan, np.nan, np.nan, np.inf)
    with warnings.catch_warnings(), np.errstate(over="ignore"):
        warnings.simplefilter("ignore", OptimizeWarning)  # where B is so large that nothing depends on it
        for a in every_a:
            for c_mid in every_c_mid:

                def of_log_b(c: np.ndarray, log_b: float, a: float = a, c_mid: float = c_mid) -> np.ndarray:
                    return sigmoid(c, r0, a, np.exp(log_b), c_mid)  # B > 0

                (log_b,), _ = curve_fit(of_log_b, compute, accuracy, p0=[0.0])
                error = np.sqrt(np.mean((of_log_b(compute, log_b) - accuracy) ** 2))
                if error < best.error:
                    best = Fit(float(a), float(np.exp(log_b)), float(c_mid), float(error))
    return best


def evaluations(run: Path, compute: str) -> tuple[float, np.ndarray, np.ndarray]:
    """R_0 of a run, and compute (N,) and accuracy (N,) of the evaluations after it."""
    if not (run / "metrics.jsonl").is_file():
        fail(f"{run} is no run folder: it has no metrics.jsonl.")
    cost, points = 0.0, []
    for row in read_metrics(run):
        seconds = sum(v for key, v in row.items() if key.startswith("seconds/") and key != "seconds/evaluate")
        cost = row["step"] if compute == "steps" else cost + seconds
        if "eval/avg" in row:
            points.append((row["step"], cost, row["eval/avg"]))
    if not points or points[0][0] > 0:
        fail(f"{run} has no evaluation before training.")
    return points[0][2], np.array([c for _, c, _ in points[1:]]), np.array([r for *_, r in points[1:]])


def main(args: Args) -> None:
    if not args.runs:
        fail("name a run folder, or several: python -m recipes.scaling_fit runs/...")
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    found = [evaluations(run, args.compute) for run in args.runs]
    for number, (run, (r0, compute, accuracy)) in enumerate(zip(args.runs, found, strict=True)):
        fitted = (compute >= args.skip) & (compute <= args.until)  # (N,)
        if fitted.sum() < FEWEST:
            fail(f"{run}: {fitted.sum()} evaluations to fit to, {FEWEST} are needed: train with a lower --eval-every.")
        a, b, c_mid, error = fit(compute[fitted], accuracy[fitted], r0)
        line = f"{run}: R_0 {r0:.3f}, A {a:.3f}, B {b:.2f}, C_mid {c_mid:.3g} {args.compute}, error {error:.3f}"
        line += f" over {fitted.sum()} evaluations"
        if (later := compute > args.until).any():
            expected = sigmoid(compute[later], r0, a, b, c_mid)
            line += f"; after {args.until:g} they are off by {np.abs(expected - accuracy[later]).mean():.3f} on average"
        if c_mid > compute[fitted].max():
            line += "\n    note: half of the gain is still to come, so where it ends is a guess"
        say(line, keep="\n")
        color, along = COLORS[number % len(COLORS)], np.linspace(compute.max() / 200, compute.max(), 200)
        axes.plot(along, sigmoid(along, r0, a, b, c_mid), color=color, label=f"{run.name}: A {a:.3f}, B {b:.2f}")
        axes.plot(compute, accuracy, "o", color=color, fillstyle="none")
        axes.plot(compute[fitted], accuracy[fitted], "o", color=color)
    axes.set(xlabel=f"compute ({args.compute})", ylabel="held-out accuracy", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(args.runs[0] / "scaling.png", dpi=100)
    say(f"picture {args.runs[0] / 'scaling.png'}")


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
