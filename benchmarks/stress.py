"""Every method at the top level under stress: stale rollouts, and many updates from each rollout batch.

    python -m benchmarks.stress                       # makes the runs that reports/ lacks, seed by seed, then draws
    python -m benchmarks.stress --redraw              # only the page and the picture

30 steps of 64 responses, with one stress at a time: four updates from rollouts that are 0, 1, 4 or 16 batches old, or
4, 16 or 32 updates (passes of four minibatches) from fresh ones. A method keeps its paper's own defaults; nothing is
tuned. A run has collapsed if its held-out accuracy ends below half of its best training accuracy (mean of 5 steps). The
results go to reports/stress.json, reports/stress.png and reports/stress.md.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import mean

from claims.court import rounded
from claims.runs import JOBS, Trial, trial
from tools.plots import panel
from tools.reports import REPORTS, heading, read_report, today, write_report
from tools.scripts import ROOT, parents, script_path
from tools.stats import written

import tyro
from matplotlib.figure import Figure

METHODS = [method for method in parents() if script_path(method).parent == ROOT]
WINDOW = 5
CELLS = [(0, 4), (1, 4), (4, 4), (16, 4), (0, 16), (0, 32)]  # (staleness k, updates per rollout batch)
INTRODUCTION = """
Each method for 30 steps of 64 responses (DAPO samples more, until 8 groups have signal), under one stress at a time:
four updates from rollouts that are k batches old, or many updates from each fresh batch. Bounds, caps and rewards are
the paper's where it gives any; learning rate and batch are the same for all; nothing is tuned. At the default settings
the methods [perform much alike](methods.md). There are {seeds} seeds; intervals are 95 % intervals over them. A run has
collapsed if its held-out accuracy (avg@8 on 64 problems; {base:.2f} before training) ends below half of its best
training accuracy (mean of 5 steps). A run whose numbers are not finite counts with an accuracy of 0. REINFORCE and RLOO
are made for one update per batch.

With staleness k, the engine has the base model's weights for the first k + 1 steps. All methods but DPPO, whose ratio
is to the engine's policy, correct for staleness with truncated importance sampling (C = 2), as by default. The ratios
of the last table are to the learner's policy before the updates, DPPO's to the engine's; GSPO's are per response.

{found}

![Held-out accuracy of each method under each stress](stress.png)
"""


@dataclass
class Args:
    seeds: int = 5
    """Number of seeds, from 1 on."""
    redraw: bool = False
    """Only draw the page and the picture again."""


def command(method: str, k: int, updates: int) -> str:
    """The run of a method under a stress, as claims/runs.py names it."""
    return f"{method} --steps 30 --staleness {k} --num-minibatches 4 --update-epochs {updates // 4}"


def summary(t: Trial) -> dict[str, float]:
    """The compared numbers of one run."""
    curve = t.series("accuracy")
    best = max(mean(curve[i : i + WINDOW]) for i in range(len(curve) - WINDOW + 1))
    logged = [row for row in t.rows if row.get("ratio_max") is not None]
    return {
        "base": t.rows[0]["eval/avg"],
        "accuracy": t.last(),
        "collapsed": float(t.last() < best / 2),
        "entropy": t.mean("entropy", WINDOW),
        "smallest ratio": min((row["ratio_min"] for row in logged), default=1.0),
        "largest ratio": max((row["ratio_max"] for row in logged), default=1.0),
    }


def of_cell(runs: list[dict], method: str, k: int, updates: int) -> list[dict]:
    return [r for r in runs if (r["method"], r["k"], r["updates"]) == (method, k, updates)]


def table(runs: list[dict], title: str, form: Callable[[list[dict]], str]) -> str:
    """A line per method, a column per cell; `form` writes the runs of a cell."""
    heads = " | ".join(f"{updates}, k = {k}" for k, updates in CELLS)
    lines = [f"\n## {title}\n", f"| updates per batch, staleness | {heads} |", f"|---|{'---|' * len(CELLS)}"]
    for method in METHODS:
        cells = (of_cell(runs, method, *cell) for cell in CELLS)
        lines.append(f"| {method} | {' | '.join(form(cell) if cell else '' for cell in cells)} |")
    return "\n".join(lines) + "\n"


def found(runs: list[dict]) -> str:
    """The table of accuracies in short."""

    def ends(k: int, updates: int) -> str:
        means = [mean(r["accuracy"] for r in of_cell(runs, method, k, updates)) for method in METHODS]
        return f"{min(means):.2f} to {max(means):.2f}"

    whole = [method for method in METHODS if not any(r["collapsed"] for r in runs if r["method"] == method)]
    return (
        f"In short: with four updates from fresh rollouts all methods end at {ends(0, 4)}; with rollouts that are\n"
        f"16 batches old at {ends(16, 4)}, and with 32 updates at {ends(0, 32)}. Methods without a collapsed run: "
        f"{', '.join(whole)}."
    )


def page(runs: list[dict]) -> str:
    """reports/stress.md."""
    fewest, most = (f(len(of_cell(runs, m, *cell)) for m in METHODS for cell in CELLS) for f in (min, max))
    seeds = str(most) if fewest == most else f"{fewest} to {most}"
    parts = [
        heading("All methods under stress", "python -m benchmarks.stress", (r["date"] for r in runs)),
        INTRODUCTION.format(seeds=seeds, base=mean(r["base"] for r in runs), found=found(runs)),
        table(runs, "Held-out accuracy at the end", lambda cell: written([r["accuracy"] for r in cell], ".2f")),
        table(runs, "Fraction of collapsed runs", lambda cell: f"{mean(r['collapsed'] for r in cell):.0%}"),
        table(runs, "Entropy at the end, nats per token", lambda cell: f"{mean(r['entropy'] for r in cell):.2f}"),
        table(
            runs,
            "Smallest and largest ratio of any token, before clipping",
            lambda cell: f"{min(r['smallest ratio'] for r in cell):.1g} to {max(r['largest ratio'] for r in cell):.3g}",
        ),
    ]
    return "".join(parts)


def draw(runs: list[dict]) -> Figure:
    """A heat map: a row per method, sorted by mean, a column per stress, with the number of collapsed runs."""
    cells = {m: [of_cell(runs, m, *cell) for cell in CELLS] for m in METHODS}
    means = {m: [mean(r["accuracy"] for r in cell) for cell in of_method] for m, of_method in cells.items()}
    order = sorted(METHODS, key=lambda m: -mean(means[m]))
    figure = Figure(figsize=(8.4, 5.2), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow([means[m] for m in order], vmin=0, vmax=1, cmap="viridis", aspect="auto")
    for y, method in enumerate(order):
        for x, cell in enumerate(cells[method]):
            lost = sum(r["collapsed"] for r in cell)
            text = f"{means[method][x]:.2f}" + (f"\n{lost:.0f} of {len(cell)} collapsed" if lost else "")
            dark = means[method][x] < 0.6
            axes.text(x, y, text, ha="center", va="center", fontsize="x-small", color="white" if dark else "black")
    panel(axes, "Held-out accuracy after 30 steps, mean of the seeds", "", "")
    axes.grid(False)
    labels = [
        f"{updates} updates\n" + (f"{k} {'batch' if k == 1 else 'batches'} old" if k else "fresh rollouts")
        for k, updates in CELLS
    ]
    axes.set_xticks(range(len(CELLS)), labels, fontsize="small")
    axes.set_yticks(range(len(order)), order)
    figure.colorbar(image, ax=axes, label="held-out accuracy")
    return figure


def main(args: Args) -> None:
    runs = read_report("stress", [])
    if not args.redraw:
        known = {(r["method"], r["k"], r["updates"], r["seed"]) for r in runs}
        jobs = [(m, *cell, seed) for seed in range(1, args.seeds + 1) for cell in CELLS for m in METHODS]
        jobs = [job for job in jobs if job not in known]
        with ThreadPoolExecutor(JOBS) as pool:
            measured = pool.map(lambda job: summary(trial(command(*job[:3]), job[3])), jobs)
            for job, numbers in zip(jobs, measured, strict=True):
                settings = dict(zip(("method", "k", "updates", "seed"), job, strict=True))
                runs.append(settings | rounded(numbers) | {"date": today()})
                write_report("stress", runs)
    (REPORTS / "stress.md").write_text(page(runs))
    draw(runs).savefig(REPORTS / "stress.png", dpi=90)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
