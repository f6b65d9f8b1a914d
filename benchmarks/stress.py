"""Every method at the top level under stress: stale rollouts, and many updates from each rollout batch.

    python -m benchmarks.stress                       # makes the runs that reports/ lacks, then draws
    python -m benchmarks.stress --redraw              # only the page and the picture

Three conditions on sums: four updates from batches of 64 responses that are 8 batches old, 16 updates from fresh
batches (four passes of four minibatches), and four updates from fresh batches. Under each condition, each method has
its best learning rate, found on separate seeds, and every run has its own problems (claims/fair.py). Everything else is
the paper's default. Results go to reports/stress.json, stress.png and stress.md, sweeps to reports/learning_rates.json.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import mean, stdev

from claims import fair
from claims.court import rounded
from claims.runs import JOBS, accuracy, trial
from common.cli import say
from tools.plots import BLUE, draw_intervals, panel
from tools.reports import REPORTS, heading, read_report, today, write_report
from tools.scripts import ROOT, parents, script_path
from tools.stats import written

import numpy as np
import tyro
from matplotlib.figure import Figure

METHODS = [method for method in parents() if script_path(method).parent == ROOT]
CONDITIONS = {  # (staleness k, updates per rollout batch)
    "rollouts 8 batches old, 4 updates": (8, 4),
    "fresh rollouts, 16 updates": (0, 16),
    "fresh rollouts, 4 updates": (0, 4),
}
DRAWS = 10_000
INTRODUCTION = """
Each method trains on sums for 30 steps of 64 responses under three conditions. DAPO has more responses than the others,
because it samples until 8 groups have signal, so its rank is too good: with equal numbers of responses such sampling
costs accuracy ([dynamic_sampling_pays](claims.md)). With a staleness of 8 there are 38 steps, because the engine has
the base model's weights for the first 9. Under each condition each method uses the best learning rate of its sweep:
3e-5, 1e-4 and 3e-4, then further ones until the rates on either side of the best are worse, two seeds each. Accuracies
are means of {seeds} other seeds with their 95 % intervals. Every run has its own 256 held-out problems, with two
samples each. A rank is the interval that contains it in 95 % of {draws} draws of all means from their t distributions.
Bounds, caps and rewards are the paper's if it gives any. REINFORCE and RLOO are made for one update per batch. All
methods correct for staleness with truncated importance sampling (C = 2, the default), except DPPO, whose ratio is to
the rollout policy.

{found}

![Held-out accuracy of each method under each condition](stress.png)
"""

Runs = list[dict]


@dataclass
class Args:
    seeds: int = 6
    """Number of seeds, from 2 on."""
    redraw: bool = False
    """Only draw the page and the picture again."""


def arms(k: int, updates: int) -> dict[str, str]:
    """The runs of all methods under a condition, named as in claims/runs.py, without a learning rate."""
    flags = f"--steps {30 + k} --staleness {k} --num-minibatches 4 --update-epochs {updates // 4}"
    return fair.arms_of("sums", {method: f"{method} {flags}" for method in METHODS})


def accuracies(runs: Runs, condition: str) -> dict[str, list[float]]:
    """Each method's accuracies by seed under a condition, the best method first."""
    found = {m: [r["accuracy"] for r in runs if (r["method"], r["condition"]) == (m, condition)] for m in METHODS}
    return dict(sorted(found.items(), key=lambda item: -mean(item[1])))


def ranks(values: dict[str, list[float]]) -> dict[str, str]:
    """Each method's range of ranks in 95 % of draws of all means from their t distributions."""
    random, drawn = np.random.default_rng(0), []
    for of_method in values.values():
        error = stdev(of_method) / len(of_method) ** 0.5
        drawn.append(mean(of_method) + error * random.standard_t(len(of_method) - 1, DRAWS))
    order = (-np.array(drawn)).argsort(0).argsort(0) + 1  # (methods, draws)
    bounds = np.quantile(order, [0.025, 0.975], axis=1, method="closest_observation").astype(int).T
    return {method: f"{low} to {high}" for method, (low, high) in zip(values, bounds, strict=True)}


def table(runs: Runs, condition: str) -> str:
    """One line per method: accuracy, rank, learning rate, and the sweep's result at each rate."""
    values, of_arms = accuracies(runs, condition), arms(*CONDITIONS[condition])
    swept = {method: read_report(fair.REPORT)[of_arms[method]] for method in METHODS}
    rates = [rate for rate in fair.RATES if any(rate in found for found in swept.values())]
    lines = [
        f"\n## {condition[0].upper()}{condition[1:]}\n",
        f"| method | accuracy | rank | learning rate | {' | '.join(f'sweep, {rate}' for rate in rates)} |",
        "|---|" + "---|" * (3 + len(rates)),
    ]
    for method, rank in ranks(values).items():
        found = swept[method]
        cells = [f"{found[rate]:.2f}" if rate in found else "" for rate in rates]
        best = max(found, key=found.get)
        lines.append(f"| {method} | {written(values[method])} | {rank} | {best} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def found(runs: Runs) -> str:
    """A summary of the tables."""
    sentences = []
    for condition in CONDITIONS:
        values = accuracies(runs, condition)
        means = [mean(of_method) for of_method in values.values()]
        best = sum(rank.startswith("1 ") for rank in ranks(values).values())
        sentences.append(f"- {condition}: {means[-1]:.2f} to {means[0]:.2f}; {best} of {len(means)} may be the best")
    return "In short, with each method at its best learning rate:\n" + ";\n".join(sentences) + "."


def page(runs: Runs) -> str:
    """The page reports/stress.md."""
    counts = {len(values) for condition in CONDITIONS for values in accuracies(runs, condition).values()}
    seeds = " or ".join(map(str, sorted(counts)))
    parts = [
        heading("All methods under stress", "python -m benchmarks.stress", (r["date"] for r in runs)),
        INTRODUCTION.format(seeds=seeds, draws=f"{DRAWS:,}", found=found(runs)),
        *(table(runs, condition) for condition in CONDITIONS),
    ]
    return "".join(parts)


def draw(runs: Runs) -> Figure:
    """One panel per condition: every run of each method and the mean with its interval, the best method on top."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for axes, condition in zip(figure.subplots(1, len(CONDITIONS), sharex=True), CONDITIONS, strict=True):
        draw_intervals(axes, accuracies(runs, condition), [BLUE] * len(METHODS))
        panel(axes, condition, "held-out accuracy", "")
    return figure


def measure(condition: str, seeds: int) -> None:
    """Find the learning rates of all methods under a condition, and make the runs that reports/stress.json lacks."""
    rated = {}
    for method, words in arms(*CONDITIONS[condition]).items():
        say(f"{method}, {condition}: {fair.sweep_arm(words)}")
        rated[method] = fair.at_best_rate(words)
    runs = read_report("stress", [])
    known = {(r["method"], r["seed"]) for r in runs if r["condition"] == condition}
    jobs = [(method, seed) for seed in range(1, seeds + 1) for method in METHODS if (method, seed) not in known]
    with ThreadPoolExecutor(JOBS) as pool:
        values = pool.map(lambda job: accuracy(trial(rated[job[0]], job[1])), jobs)
        for (method, seed), value in zip(jobs, values, strict=True):
            of_run = {"method": method, "condition": condition, "seed": seed, "accuracy": value, "date": today()}
            runs.append(rounded(of_run))
            write_report("stress", runs)


def main(args: Args) -> None:
    for condition in () if args.redraw else CONDITIONS:
        measure(condition, args.seeds)
    runs = read_report("stress", [])
    (REPORTS / "stress.md").write_text(page(runs))
    draw(runs).savefig(REPORTS / "stress.png", dpi=90)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
