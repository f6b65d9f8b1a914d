"""A recipe without one of its tricks at a time, on the embedded default: which of them matter here?

    python -m benchmarks.ablation scalerl            # runs what is not yet in ablation_scalerl.json, two at a time
    python -m benchmarks.ablation scalerl --redraw   # only the table, from ablation_scalerl.json

The tricks, and the flags that take them away, are those of the table in the recipe's docstring. Each run is compared
with that of the whole recipe with the same seed. The figures land in benchmarks/ablation_RECIPE.json, and in
reports/methods.md where that has a table of the recipe.
"""

import json
import re
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.methods import run
from common.cli import fail
from tools.scripts import ROOT, parents, tricks
from tools.stats import interval

import tyro

HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "methods.md"
WHOLE, NONE = "the whole recipe", "without all of them"


@dataclass
class Args:
    recipe: tyro.conf.Positional[str]
    """A script whose docstring has a table of tricks, such as olmo3."""
    steps: int = 40
    """Rollout batches of each run."""
    seeds: int = 3
    """Seeds 1 to so many."""
    jobs: int = 2
    """Runs at a time, with one thread each."""
    redraw: bool = False
    """Only write the table again."""


def variants(recipe: str) -> dict[str, str]:
    """The flags of each variant."""
    without = {f"without: {trick}": flags for trick, flags in tricks(recipe).items()}
    return {WHOLE: "", **without, NONE: " ".join(without.values())}


def mean_and_half(values: list[float], sign: str = "") -> str:
    if len(values) < 2:
        return f"{values[0]:{sign}.3f}"
    mean, half = interval(values)
    return f"{mean:{sign}.3f} ± {half:.3f}"


def table(recipe: str, runs: list[dict[str, Any]]) -> str:
    """One line per variant: means over the seeds, with 95 % intervals where there are several."""
    lines = [
        f"| {recipe} | flags | avg@16 | difference | avg@16 on the way | tokens per response | prompts per step |",
        "|---|---|---|---|---|---|---|",
    ]
    whole = {r["seed"]: r["log"][-1]["eval/avg"] for r in runs if r["variant"] == WHOLE}
    for variant, flags in variants(recipe).items():
        mine = [r for r in runs if r["variant"] == variant and r["seed"] in whole]
        if mine:
            last = [r["log"][-1] for r in mine]
            differences = [r["log"][-1]["eval/avg"] - whole[r["seed"]] for r in mine]
            sampled = statistics.mean(row.get("sampled_prompts", 32) for r in mine for row in r["log"][1:])
            way = [statistics.mean(row["eval/avg"] for row in r["log"][1:] if "eval/avg" in row) for r in mine]
            lines.append(
                f"| {variant} | {f'`{flags}`' if variant not in (WHOLE, NONE) else ''} "
                f"| {mean_and_half([row['eval/avg'] for row in last])} "
                f"| {'' if variant == WHOLE else mean_and_half(differences, '+')} "
                f"| {statistics.mean(way):.3f} | {statistics.mean(row['length'] for row in last):.1f} "
                f"| {sampled:.0f} |"
            )
    return "\n".join(lines) + "\n"


def main(args: Args) -> None:
    if args.recipe not in parents() or not tricks(args.recipe):
        having = [name for name in parents() if tricks(name)]
        fail(f"{args.recipe} is no recipe with a table of tricks: {', '.join(having)}.")
    results = HERE / f"ablation_{args.recipe}.json"
    runs = json.loads(results.read_text()) if results.exists() else []
    if other := {r["log"][-1]["step"] for r in runs} - {args.steps}:
        fail(f"{results} holds runs of {other.pop()} steps: go on with as many, or move it away.")
    if not args.redraw:
        done = {(r["seed"], r["variant"]) for r in runs}
        plan = [(seed, variant) for seed in range(1, args.seeds + 1) for variant in variants(args.recipe)]

        def one(job: tuple[int, str]) -> dict[str, Any]:
            seed, variant = job
            flags = tuple(variants(args.recipe)[variant].split())
            return {"variant": variant, **run(args.recipe, seed, args.steps, flags)}

        with ThreadPoolExecutor(args.jobs) as pool:
            for r in pool.map(one, [job for job in plan if job not in done]):
                runs.append(r)
                results.write_text("[\n" + ",\n".join(json.dumps(r) for r in runs) + "\n]\n")
    if runs:
        measured = table(args.recipe, runs)
        old = re.compile(rf"\| {args.recipe} \| flags \|.*?\n(?=\n)", re.DOTALL)
        PAGE.write_text(old.sub(lambda _: measured, PAGE.read_text()))
        print(measured)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
