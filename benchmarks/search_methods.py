"""Every script on the world of search, at its best of three learning rates, chosen on one seed; three others count.

    python -m benchmarks.search_methods              # all scripts; what reports/search_methods.json has is kept
    python -m benchmarks.search_methods grpo cispo   # some
    python -m benchmarks.search_methods --updates 16 # with 16 updates per rollout batch instead of 4
    python -m benchmarks.search_methods --redraw     # only the tables and the picture

A run has 40 steps of 8 prompts x 8 responses, or 25 steps with 16 updates each. Like the runs of the claims, it is kept
in runs/claims/. Scripts that need other settings in this world are left out; with 16 updates, so are those that make
only one.
"""

import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from claims.runs import JOBS, RATES, REUSE, SEARCH, SWEEP_SEEDS, Trial, accuracy, trial
from common.cli import fail
from common.help import parse_args
from tools.plots import BLUE, GREEN, ORANGE, draw_intervals, panel
from tools.reports import REPORTS, read_report, replace_table, today, write_report
from tools.scripts import FOLDERS, load, parents, script_path
from tools.stats import written

import tyro
from matplotlib.figure import Figure

PAGE = REPORTS / "methods.md"
SEEDS = (1, 2, 3)
COLUMNS = {  # with the format of their means
    "pass@4": ("eval/pass@4", ".3f"),
    "attempts": ("eval/behavior/attempts", ".1f"),
    "repeated": ("eval/behavior/repeated_attempts", ".0%"),
    "length": ("length", ".0f"),
    "truncated": ("eval/truncated", ".0%"),
}
LEFT_OUT = {
    "calculator": "calls a tool",
    "agent": "has an environment",
    "gigpo": "has an environment",
    "opd": "needs a teacher",
    "r1": "has stages",
}


@dataclass
class Args:
    methods: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names of scripts; by default all that run on this world."""
    updates: Literal[4, 16] = 4
    """Updates from each rollout batch: 4, as most scripts make by default, or 16, in four passes."""
    redraw: bool = False
    """Only draw the tables and the picture again."""


def names(updates: int) -> list[str]:
    every = [name for name in parents() if name not in LEFT_OUT]
    return every if updates == 4 else [name for name in every if hasattr(load(name).Args, "update_epochs")]


def arm(name: str, updates: int, rate: str) -> str:
    return f"{name} {SEARCH} --model search {REUSE if updates == 16 else ''} --lr {rate}"


def measured(run: Trial) -> dict[str, float]:
    return {key: run.last(key) for key in ("eval/avg", *(key for key, _ in COLUMNS.values()))}


def of_method(name: str, updates: int) -> dict:
    """A method's sweep, and the final numbers of its runs at the best rate."""
    swept = {rate: accuracy(trial(f"{arm(name, updates, rate)} --eval-samples 1", SWEEP_SEEDS[0])) for rate in RATES}
    best = max(RATES, key=swept.get)
    ends = [measured(trial(arm(name, updates, best), seed)) for seed in SEEDS]
    print(f"{name}: {best} of {swept}; {written([end['eval/avg'] for end in ends])}", flush=True)
    return {"method": name, "updates": updates, "swept": swept, "rate": best, "ends": ends, "date": today()}


def sorted_by_mean(found: list[dict], updates: int) -> list[dict]:
    of_updates = [one for one in found if one["updates"] == updates]
    return sorted(of_updates, key=lambda one: -statistics.mean(end["eval/avg"] for end in one["ends"]))


def table(found: list[dict], updates: int) -> str:
    lines = [
        f"| {updates} updates | learning rate | avg@4 | {' | '.join(COLUMNS)} |",
        "|---" * (3 + len(COLUMNS)) + "|",
    ]
    for one in sorted_by_mean(found, updates):
        cells = [one["method"], one["rate"], written([end["eval/avg"] for end in one["ends"]])]
        cells += [f"{statistics.mean(end[key] for end in one['ends']):{form}}" for key, form in COLUMNS.values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(found: list[dict]) -> Figure:
    colors = dict(zip(FOLDERS, (BLUE, ORANGE, GREEN), strict=True))
    of_updates = {updates: methods for updates in (4, 16) if (methods := sorted_by_mean(found, updates))}
    height = 1 + 0.24 * max(map(len, of_updates.values()))
    figure = Figure(figsize=(1 + 4 * len(of_updates), height), layout="constrained")
    figure.suptitle(f"World of search: {len(SEEDS)} seeds, and the 95 % interval of their mean", fontsize="medium")
    panels = figure.subplots(1, len(of_updates), squeeze=False)[0]
    for axes, (updates, methods) in zip(panels, of_updates.items(), strict=True):
        values = {one["method"]: [end["eval/avg"] for end in one["ends"]] for one in methods}
        draw_intervals(axes, values, [colors[script_path(name).parent] for name in values])
        panel(axes, f"{updates} updates from each rollout batch", "avg@4 on 256 problems", "")
    return figure


def main(args: Args) -> None:
    found, known = read_report("search_methods", []), names(args.updates)
    if unknown := [name for name in args.methods if name not in known]:
        fail(f"{unknown[0]} {LEFT_OUT.get(unknown[0], 'does not run so')}: name others of {', '.join(known)}.")
    done = {one["method"] for one in found if one["updates"] == args.updates}
    todo = [] if args.redraw else [name for name in args.methods or known if name not in done]
    with ThreadPoolExecutor(JOBS) as pool:
        for one in pool.map(lambda name: of_method(name, args.updates), todo):
            found.append(one)
            write_report("search_methods", found)
    for updates in (4, 16):
        replace_table(PAGE, f"| {updates} updates |", table(found, updates))
    draw(found).savefig(REPORTS / "search_methods.png", dpi=90)
    print(table(found, args.updates))


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
