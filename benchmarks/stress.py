"""Every method at the top level under stress: stale rollouts and many updates from each batch.

    nice -n 15 python -m benchmarks.stress            # runs what is not there yet, seed by seed, then draws
    python -m benchmarks.stress --redraw              # only the page and the picture, from stress.json

30 steps of 64 responses; k rollout batches of staleness, and 4, 16 or 32 updates from every batch (passes of four
minibatches). A method keeps its paper's own defaults, nothing is tuned. A run has collapsed if its held-out accuracy
ends below half of its best training accuracy (mean of 5 steps). Runs are kept in runs/claims/ (claims/runs.py), so an
interrupted comparison goes on; the figures land in benchmarks/stress.json, stress.png and docs/stress.md.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from claims.court import rounded
from claims.runs import JOBS, Trial, trial
from common.plots import BLUE, GRAY, RED
from common.scripts import ROOT, parents, script_path
from common.stats import interval

import tyro
from matplotlib.figure import Figure

HERE = Path(__file__).parent
METHODS = [method for method in parents() if script_path(method).parent == ROOT]
STALENESS, UPDATES, WINDOW = (0, 1, 4, 16), (4, 16, 32), 5
PAGE_HEAD = """# All methods under stress

Each method with its paper's defaults for 30 steps of 64 responses: rollouts that are k batches old, and 4, 16 or 32
updates from every batch. At the default settings of the scripts all methods [do alike](methods.md); here they do not.
Made by `python -m benchmarks.stress` ({seeds} seeds, 95 % intervals). A run has collapsed if its held-out accuracy
(avg@8 on 64 problems; {base:.2f} before training) ends below half of its best training accuracy.

![Held-out accuracy by staleness, each method beside GRPO](../benchmarks/stress.png)
"""


@dataclass
class Args:
    seeds: int = 5
    """Seeds 1 to so many."""
    redraw: bool = False
    """Only draw the page and the picture again."""


def arm(method: str, k: int, updates: int) -> str:
    return f"{method} --steps 30 --staleness {k} --num-minibatches 4 --update-epochs {updates // 4}"


def summary(t: Trial) -> dict[str, float]:
    """What is compared of one run."""
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


def accuracy(cell: list[dict]) -> tuple[float, float]:
    """Mean final accuracy and half of its interval, none with a single seed."""
    values = [r["accuracy"] for r in cell]
    return interval(values) if len(values) > 1 else (values[0], 0.0)


def table(runs: list[dict], title: str, form) -> str:
    """A line per method, a column per cell; `form` writes the runs of a cell."""
    heads = " | ".join(f"{updates}, k = {k}" for updates in UPDATES for k in STALENESS)
    lines = [f"\n## {title}\n", f"| updates per batch, staleness | {heads} |", f"|---|{'---|' * 12}"]
    for method in METHODS:
        cells = (of_cell(runs, method, k, updates) for updates in UPDATES for k in STALENESS)
        lines.append(f"| {method} | {' | '.join(form(cell) if cell else '' for cell in cells)} |")
    return "\n".join(lines) + "\n"


def page(runs: list[dict]) -> str:
    head = PAGE_HEAD.format(seeds=max(r["seed"] for r in runs), base=mean(r["base"] for r in runs))
    return head + "".join(
        (
            table(runs, "Held-out accuracy at the end", lambda cell: "{:.2f} ± {:.2f}".format(*accuracy(cell))),
            table(runs, "Share of collapsed runs", lambda cell: f"{mean(r['collapsed'] for r in cell):.0%}"),
            table(runs, "Entropy at the end, nats per token", lambda cell: f"{mean(r['entropy'] for r in cell):.2f}"),
            table(
                runs,
                "Smallest and largest ratio of any token, before clipping",
                lambda cell: (
                    f"{min(r['smallest ratio'] for r in cell):.1g} to {max(r['largest ratio'] for r in cell):.3g}"
                ),
            ),
        )
    )


def draw(runs: list[dict]) -> None:
    """A column for each method beside GRPO in gray, a row for each number of updates."""
    others = [method for method in METHODS if method != "grpo"]
    figure = Figure(figsize=(1.5 * len(others), 6), layout="constrained")
    panels = figure.subplots(len(UPDATES), len(others), sharex=True, sharey=True)
    for of_row, updates in zip(panels, UPDATES, strict=True):
        for axes, method in zip(of_row, others, strict=True):
            for name, color in (("grpo", GRAY), (method, BLUE)):
                cells = {x: of_cell(runs, name, k, updates) for x, k in enumerate(STALENESS)}
                cells = {x: cell for x, cell in cells.items() if cell}
                if not cells:
                    continue
                means, halves = zip(*map(accuracy, cells.values()), strict=True)
                axes.errorbar(list(cells), means, halves, color=color, marker="o", markersize=3, capsize=2)
                lost = [x for x, cell in cells.items() if mean(r["collapsed"] for r in cell) > 0.5]
                axes.plot(lost, [means[list(cells).index(x)] for x in lost], "x", color=RED, markersize=7, zorder=3)
            axes.set(ylim=(0, 1), xticks=range(len(STALENESS)), xticklabels=STALENESS)
            axes.grid(alpha=0.3)
        of_row[0].set_ylabel(f"{updates} updates per batch")
    for axes, method in zip(panels[0], others, strict=True):
        axes.set_title(method, color=BLUE, fontsize="medium")
    figure.supxlabel("age of the rollouts, in rollout batches")
    figure.suptitle("Held-out accuracy: each method beside GRPO (gray); a red cross where most runs collapsed")
    figure.savefig(HERE / "stress.png", dpi=80)


def main(args: Args) -> None:
    results = HERE / "stress.json"
    if not args.redraw:
        cells = [(method, k, updates) for k in STALENESS for updates in UPDATES for method in METHODS]
        jobs = [(*cell, seed) for seed in range(1, args.seeds + 1) for cell in cells]
        runs = []
        with ThreadPoolExecutor(JOBS) as pool:
            done = pool.map(lambda job: summary(trial(arm(*job[:3]), job[3])), jobs)
            for job, found in zip(jobs, done, strict=True):
                runs.append(dict(zip(("method", "k", "updates", "seed"), job, strict=True)) | rounded(found))
                results.write_text("[\n" + ",\n".join(map(json.dumps, runs)) + "\n]\n")
    runs = json.loads(results.read_text())
    (ROOT / "docs" / "stress.md").write_text(page(runs))
    draw(runs)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
