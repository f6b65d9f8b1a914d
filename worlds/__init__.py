"""Which embedded models and generated data sets exist. This file imports nothing heavy.

To add a world, write worlds/WORLD/problems.py and add lines to the two tables. To add an adapter for another
package's tasks, write worlds/ADAPTER/problems.py (dashes of the name as underscores) with `problems(task)`.
"""

import importlib
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

WORLDS = Path(__file__).parent


class Model(NamedTuple):
    """An embedded model: its folder, the worlds whose problems it was pretrained on, and its default length limit."""

    folder: Path
    worlds: tuple[str, ...]
    max_response_tokens: int = 96


MODELS = {
    "sums": Model(WORLDS / "sums" / "model", ("sums",)),
    "sums-filler": Model(WORLDS / "sums" / "filler", ("sums",)),
    "sums-experts": Model(WORLDS / "sums" / "experts", ("sums",)),
    "products": Model(WORLDS / "products" / "model", ("sums", "products")),
    "search": Model(WORLDS / "search" / "model", ("search",), max_response_tokens=240),
    "guessing": Model(WORLDS / "guessing" / "model", ("guessing",)),
    "retrieval": Model(WORLDS / "retrieval" / "model", ("retrieval",), max_response_tokens=192),
    "python": Model(WORLDS / "python" / "model", ("python",), max_response_tokens=230),
}
# Each data set's world, and the function in the world's problems.py that makes one (question, answer).
DATASETS = {
    "sums": ("sums", "sum_problem"),
    "sums-hard": ("sums", "hard_sum_problem"),
    "products": ("products", "product_problem"),
    "search": ("search", "search_problem"),
    "search-hard": ("search", "hard_search_problem"),
    "countdown": ("countdown", "countdown_problem"),
    "guessing": ("guessing", "guessing_problem"),
    "retrieval": ("retrieval", "retrieval_problem"),
    "python": ("python", "python_problem"),
}
# The module in this folder that defines each environment, as ENVIRONMENT.
ENVIRONMENTS = {
    "guessing": "guessing.environment",
    "calculator": "products.calculator",
    "python": "python.environment",
    "retrieval": "retrieval.environment",
}

WITH_SOLUTIONS = ("sums", "search")  # worlds whose writers.py has a `demonstration`


def problem_function(dataset: str) -> Callable[[random.Random], tuple[str, Any]]:
    """The function that makes one (question, answer) pair of a generated data set."""
    world, function = DATASETS[dataset]
    return getattr(importlib.import_module(f"worlds.{world}.problems"), function)


def behavior_function(dataset: str) -> Callable[[list[Any], list[str]], dict[str, float | None]] | None:
    """The function that describes responses to a data set (worlds/search/behavior.py), or None if its world has none.

    It takes the answers of problems and a response to each.
    """
    if dataset not in DATASETS or not (WORLDS / DATASETS[dataset][0] / "behavior.py").exists():
        return None
    return importlib.import_module(f"worlds.{DATASETS[dataset][0]}.behavior").measure


def length_limit(model: str, dataset: str | tuple[str, ...]) -> int | None:
    """The default length limit in tokens of an embedded model, or of the one for the data set; else None."""
    world = DATASETS[dataset][0] if dataset in DATASETS else None
    known = [MODELS[model]] if model in MODELS else [m for m in MODELS.values() if world in m.worlds]
    return known[0].max_response_tokens if known else None


def is_generated(dataset: str) -> bool:
    """Whether the problems are made here or by an adapter (ADAPTER:TASK), rather than read."""
    return dataset in DATASETS or re.fullmatch(r"[\w-]+:[^/.]*", dataset) is not None


def generated_problems(dataset: str, part: str) -> list[tuple[str, Any]]:
    """(question, answer) pairs, always the same. Our own data sets have 20,000 in "train" and 512 others in "eval"."""
    if dataset not in DATASETS:
        adapter, _, task = dataset.partition(":")
        train, held_out = importlib.import_module(f"worlds.{adapter.replace('-', '_')}.problems").problems(task)
        return held_out if part == "eval" else train
    pairs = all_problems(dataset)
    return pairs[:512] if part == "eval" else pairs[512:]


@cache
def all_problems(dataset: str) -> list[tuple[str, Any]]:
    """The held-out problems of a data set, then those for training."""
    rng, make_problem = random.Random(2026), problem_function(dataset)
    problems: dict[str, Any] = {}
    while len(problems) < 20_512:
        question, answer = make_problem(rng)
        problems[question] = answer
    return list(problems.items())


def solutions(dataset: str, short: bool) -> dict[str, str]:
    """A correct solution to each training question, as a writer of the world writes it or as a prompt shows it."""
    world = DATASETS[dataset][0] if dataset in DATASETS else None
    if world not in WITH_SOLUTIONS:
        others = ", ".join(name for name, (of, _) in DATASETS.items() if of in WITH_SOLUTIONS)
        refuse(f"--dataset {dataset} comes without solutions: take {others}, or a data set with a column of them.")
    writers = importlib.import_module(f"worlds.{world}.writers")
    write = writers.short_solution if short and hasattr(writers, "short_solution") else writers.demonstration
    return {question: write(question) for question, _ in generated_problems(dataset, "train")}


def check_dataset(model: str, dataset: str) -> None:
    """End the program if a data set's adapter does not exist, or if an embedded model has not learned its world."""
    world = DATASETS[dataset][0] if dataset in DATASETS else dataset.partition(":")[0]
    adapters = {path.parent.name.replace("_", "-") for path in WORLDS.glob("*/problems.py")}
    adapters -= {name for name, _ in DATASETS.values()}
    if dataset not in DATASETS and world not in adapters:
        refuse(f"--dataset {dataset}: there is no adapter {world}. Use {' or '.join(sorted(adapters))}:TASK.")
    if model in MODELS and world not in MODELS[model].worlds:
        known = " and ".join(name for name, (world, _) in DATASETS.items() if world in MODELS[model].worlds)
        other = next((f"--model {name}" for name in MODELS if world in MODELS[name].worlds), "a pretrained --model")
        refuse(f"the embedded model {model} only knows {known}: pass {other} for --dataset {dataset}.")


def refuse(message: str) -> NoReturn:
    from common.cli import fail  # loads torch

    fail(message)
