"""Remove a recipe's components one at a time, on the embedded default: which of them matter here?

    python -m benchmarks.ablation scalerl            # makes the runs that reports/ lacks, two at a time
    python -m benchmarks.ablation scalerl --redraw   # only the table

The components and the flags that remove them are in the table of the recipe's docstring. Each run is compared with the
whole recipe's run with the same seed. The results go to reports/ablation_RECIPE.json and to the recipe's table in
reports/methods.md, if there is one.
"""

import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.methods import PAGE, require_steps, run
from common.cli import fail
from tools.reports import read_report, replace_table, write_report
from tools.scripts import components, parents
from tools.stats import written

import tyro


@dataclass
class Args:
    recipe: tyro.conf.Positional[str]
    """A script whose docstring has a table of components, such as olmo3."""
    steps: int = 40
    """Rollout batches of each run."""
    seeds: int = 3
    """Number of seeds, from 1 on."""
    jobs: int = 2
    """Runs at a time, with one thread each."""
    redraw: bool = False
    """Only write the table again."""


def variants(recipe: str) -> dict[str, str]:
    """Names of the variants, by flags."""
    without = {flags: f"without: {component}" for component, flags in components(recipe).items()}
    return {"": "the whole recipe", **without, " ".join(without): "without all of them"}


def table(recipe: str, runs: list[dict[str, Any]]) -> str:
    """One line per variant: means over the seeds, with 95 % intervals if there are several."""
    lines = [
        f"| {recipe} | flags | avg@16 | difference | avg@16 on the way | tokens per response | prompts per step |",
        "|---|---|---|---|---|---|---|",
    ]
    whole = {r["seed"]: r["log"][-1]["eval/avg"] for r in runs if r["flags"] == ""}
    for flags, name in variants(recipe).items():
        mine = [r for r in runs if r["flags"] == flags and r["seed"] in whole]
        if mine:
            last = [r["log"][-1] for r in mine]
            differences = [r["log"][-1]["eval/avg"] - whole[r["seed"]] for r in mine]
            sampled = statistics.mean(row.get("sampled_prompts", 32) for r in mine for row in r["log"][1:])
            way = [statistics.mean(row["eval/avg"] for row in r["log"][1:] if "eval/avg" in row) for r in mine]
            shown = f"`{flags}`" if name.startswith("without: ") else ""
            lines.append(
                f"| {name} | {shown} | {written([row['eval/avg'] for row in last])} "
                f"| {written(differences, '+.3f') if flags else ''} "
                f"| {statistics.mean(way):.3f} | {statistics.mean(row['length'] for row in last):.1f} "
                f"| {sampled:.0f} |"
            )
    return "\n".join(lines) + "\n"


def main(args: Args) -> None:
    having = [name for name in parents() if components(name)]
    if args.recipe not in having:
        fail(f"{args.recipe} has no table of components: name one of {', '.join(having)}.")
    report = f"ablation_{args.recipe}"
    runs = read_report(report, [])
    require_steps(report, runs, args.steps)
    if not args.redraw:
        known = {(r["seed"], r["flags"]) for r in runs}
        plan = [(seed, flags) for seed in range(1, args.seeds + 1) for flags in variants(args.recipe)]

        def one(job: tuple[int, str]) -> dict[str, Any]:
            seed, flags = job
            return {"flags": flags, **run(args.recipe, seed, args.steps, tuple(flags.split()))}

        with ThreadPoolExecutor(args.jobs) as pool:
            for r in pool.map(one, [job for job in plan if job not in known]):
                runs.append(r)
                write_report(report, runs)
    if runs:
        replace_table(PAGE, f"| {args.recipe} | flags |", table(args.recipe, runs))
        print(table(args.recipe, runs))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
