"""Every script on the world of search, at its best learning rate of three: one seed chooses it, three others count.

    python -m benchmarks.search_methods              # all scripts; what reports/search_methods.json has is kept
    python -m benchmarks.search_methods grpo cispo   # some
    python -m benchmarks.search_methods --redraw     # only the table and the picture

Runs have 40 steps of 8 prompts x 8 responses; they are made as those of the claims are and stay in runs/claims/. What
cannot run on this world with these settings alone is left out.
"""

import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from claims.runs import JOBS, RATES, SEARCH, SWEEP_SEEDS, Trial, accuracy, trial
from common.cli import fail
from common.help import parse_args
from tools.plots import BLUE, GREEN, ORANGE, draw_intervals, panel
from tools.reports import REPORTS, read_report, replace_table, today, write_report
from tools.scripts import FOLDERS, parents, script_path
from tools.stats import written

import tyro
from matplotlib.figure import Figure

PAGE = REPORTS / "methods.md"
SEEDS = (1, 2, 3)
COLUMNS = {  # and how their means are written
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
    redraw: bool = False
    """Only draw the table and the picture again."""


def names() -> list[str]:
    return [name for name in parents() if name not in LEFT_OUT]


def arm(name: str, rate: str) -> str:
    return f"{name} {SEARCH} --model search --lr {rate}"


def measured(run: Trial) -> dict[str, float]:
    return {key: run.last(key) for key in ("eval/avg", *(key for key, _ in COLUMNS.values()))}


def of_method(name: str) -> dict:
    """The sweep of a method, and what its runs at the best rate end with."""
    swept = {rate: accuracy(trial(f"{arm(name, rate)} --eval-samples 1", SWEEP_SEEDS[0])) for rate in RATES}
    best = max(RATES, key=swept.get)
    ends = [measured(trial(arm(name, best), seed)) for seed in SEEDS]
    print(f"{name}: {best} of {swept}; {written([end['eval/avg'] for end in ends])}", flush=True)
    return {"method": name, "swept": swept, "rate": best, "ends": ends, "date": today()}


def table(found: list[dict]) -> str:
    lines = [f"| on search | learning rate | avg@4 | {' | '.join(COLUMNS)} |", "|---" * (3 + len(COLUMNS)) + "|"]
    for one in sorted(found, key=lambda one: -statistics.mean(end["eval/avg"] for end in one["ends"])):
        cells = [one["method"], one["rate"], written([end["eval/avg"] for end in one["ends"]])]
        cells += [f"{statistics.mean(end[key] for end in one['ends']):{form}}" for key, form in COLUMNS.values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(found: list[dict]) -> Figure:
    values = {one["method"]: [end["eval/avg"] for end in one["ends"]] for one in found}
    values = dict(sorted(values.items(), key=lambda item: -statistics.mean(item[1])))
    colors = dict(zip(FOLDERS, (BLUE, ORANGE, GREEN), strict=True))
    figure = Figure(figsize=(7, 0.8 + 0.24 * len(values)), layout="constrained")
    axes = figure.subplots()
    draw_intervals(axes, values, [colors[script_path(name).parent] for name in values])
    title = f"World of search: held-out accuracy after 40 steps, {len(SEEDS)} seeds and the 95 % interval of their mean"
    panel(axes, title, "avg@4 on 256 problems", "")
    return figure


def main(args: Args) -> None:
    found = read_report("search_methods", [])
    if unknown := [name for name in args.methods if name not in names()]:
        fail(f"{unknown[0]} {LEFT_OUT.get(unknown[0], 'is no script')}: name others of {', '.join(names())}.")
    known = {one["method"] for one in found}
    todo = [] if args.redraw else [name for name in args.methods or names() if name not in known]
    with ThreadPoolExecutor(JOBS) as pool:
        for one in pool.map(of_method, todo):
            found.append(one)
            write_report("search_methods", found)
    replace_table(PAGE, "| on search |", table(found))
    draw(found).savefig(REPORTS / "search_methods.png", dpi=90)
    print(table(found))


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
