"""Every method at the top level under stress: stale rollouts and many updates from each batch.

    python -m benchmarks.stress                       # runs what stress.json has not yet, seed by seed, then draws
    python -m benchmarks.stress --redraw              # only the page and the picture

30 steps of 64 responses, with one stress at a time: four updates from rollouts that are 0, 1, 4 or 16 batches old, or
4, 16 or 32 updates (passes of four minibatches) from fresh ones. A method keeps its paper's own defaults, nothing is
tuned. A run has collapsed if its held-out accuracy ends below half of its best training accuracy (mean of 5 steps). The
figures land in reports/stress.json, stress.png and reports/stress.md.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from claims.court import rounded
from claims.runs import JOBS, Trial, trial
from tools.plots import BLUE, GRAY, RED
from tools.scripts import ROOT, parents, script_path
from tools.stats import interval

import tyro
from matplotlib.figure import Figure

HERE = Path(__file__).parent
METHODS = [method for method in parents() if script_path(method).parent == ROOT]
WINDOW = 5
AGES, UPDATES = "age of the rollouts, in rollout batches", "updates from each rollout batch"
STRESSES = {AGES: {k: (k, 4) for k in (0, 1, 4, 16)}, UPDATES: {n: (0, n) for n in (4, 16, 32)}}  # value: (k, updates)
CELLS = list(dict.fromkeys(cell for cells in STRESSES.values() for cell in cells.values()))
PAGE_HEAD = """# All methods under stress

Each method for 30 steps of 64 responses (DAPO draws more, until 8 groups have signal), under one stress at a time:
four updates from rollouts that are k batches old, or many updates from each fresh batch. Bounds, caps and rewards are
those of its paper where it gives any, learning rate and batch the same for all; nothing is tuned. At the default
settings the methods [perform much alike](methods.md). Made by `python -m benchmarks.stress` ({seeds} seeds; 95 %
intervals from three on). A run has collapsed if its held-out accuracy (avg@8 on 64 problems; {base:.2f} before
training) ends below half of its best training accuracy (mean of 5 steps); one whose numbers are not finite counts
with an accuracy of 0. REINFORCE and RLOO are made for one update from a batch.

A sampler that is k batches old is the base model for the first k + 1 steps. All methods but DPPO, whose ratio is to the
sampler, correct for its age with truncated importance sampling (C = 2), as by default. The ratios of the last table are
to the learner's policy before the updates, DPPO's to the sampler's; GSPO's are of responses.

{found}

![Held-out accuracy under stress, each method beside GRPO](../reports/stress.png)
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


def accuracy(cell: list[dict]) -> str:
    """Mean final accuracy, with its interval from three seeds on."""
    values = [r["accuracy"] for r in cell]
    return "{:.2f} ± {:.2f}".format(*interval(values)) if len(values) > 2 else f"{mean(values):.2f}"


def table(runs: list[dict], title: str, form) -> str:
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
    fresh = (
        f"In short: four updates from fresh rollouts end at {ends(0, 4)}, whichever the method; from rollouts that are"
    )
    others = f"16 batches old at {ends(16, 4)}, and 32 updates at {ends(0, 32)}."
    return f"{fresh}\n{others} Methods of which no run collapsed: {', '.join(whole)}."


def page(runs: list[dict]) -> str:
    fewest, most = (f(len(of_cell(runs, m, *cell)) for m in METHODS for cell in CELLS) for f in (min, max))
    seeds = str(most) if fewest == most else f"{fewest} to {most}"
    return PAGE_HEAD.format(seeds=seeds, base=mean(r["base"] for r in runs), found=found(runs)) + "".join(
        (
            table(runs, "Held-out accuracy at the end", accuracy),
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
    """A column for each method beside GRPO in gray, a row for each stress."""
    others = [method for method in METHODS if method != "grpo"]
    figure = Figure(figsize=(1.5 * len(others), 4.6), layout="constrained")
    rows = figure.subfigures(len(STRESSES), 1)
    for row, (stress, cells) in zip(rows, STRESSES.items(), strict=True):
        panels = row.subplots(1, len(others), sharey=True)
        row.supxlabel(stress, fontsize="medium")
        for axes, method in zip(panels, others, strict=True):
            for name, color in (("grpo", GRAY), (method, BLUE)):
                tried = [(x, of_cell(runs, name, *cell)) for x, cell in enumerate(cells.values())]
                xs, found = zip(*[(x, cell) for x, cell in tried if cell], strict=True)
                means = [mean(r["accuracy"] for r in cell) for cell in found]
                axes.plot(xs, means, color=color)
                points = [(x, r["accuracy"]) for x, cell in zip(xs, found, strict=True) for r in cell]
                axes.plot(*zip(*points, strict=True), "o", color=color, markersize=3, alpha=0.5)
                lost = [i for i, cell in enumerate(found) if mean(r["collapsed"] for r in cell) > 0.5]
                axes.plot([xs[i] for i in lost], [means[i] for i in lost], "x", color=RED, markersize=7, zorder=3)
            axes.set(ylim=(0, 1), xlim=(-0.3, len(cells) - 0.7), xticks=range(len(cells)), xticklabels=cells)
            axes.grid(alpha=0.3)
            axes.set_title(method, color=BLUE, fontsize="medium")
        panels[0].set_ylabel("accuracy")
    figure.suptitle("Held-out accuracy of each run: each method beside GRPO (gray); crosses where most runs collapsed")
    figure.savefig(HERE / "stress.png", dpi=80)


def main(args: Args) -> None:
    results = HERE / "stress.json"
    runs = json.loads(results.read_text()) if results.exists() else []
    if not args.redraw:
        known = {(r["method"], r["k"], r["updates"], r["seed"]) for r in runs}
        jobs = [(m, *cell, seed) for seed in range(1, args.seeds + 1) for cell in CELLS for m in METHODS]
        jobs = [job for job in jobs if job not in known]
        with ThreadPoolExecutor(JOBS) as pool:
            done = pool.map(lambda job: summary(trial(arm(*job[:3]), job[3])), jobs)
            for job, found in zip(jobs, done, strict=True):
                runs.append(dict(zip(("method", "k", "updates", "seed"), job, strict=True)) | rounded(found))
                results.write_text("[\n" + ",\n".join(map(json.dumps, runs)) + "\n]\n")
    (ROOT / "docs" / "stress.md").write_text(page(runs))
    draw(runs)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
