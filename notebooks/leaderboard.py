"""The capstone's leaderboard: accuracy on hidden problems, at a fixed budget of sampled responses.

    python -m notebooks.leaderboard NAME RUN RUN RUN ... --hidden-seed "a phrase that nobody guesses"

An entry is at least three finished runs of one script, with the same settings and different seeds. For a large class,
`--first-round SEED` makes a first table, without intervals, of entries with one run each, all with this seed.

The budget is verified from the runs' records. The accuracy is recomputed from their last checkpoints, on problems that
the hidden seed makes and that are in no data set. The table is a Markdown file, with its numbers next to it as JSON.

Records can be forged: notebooks/teachers-guide.md says how to rerun an entry with seeds that nobody knew.
"""

import hashlib
import json
import random
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpo
import worlds
from common.checkpoints import CHECKSUMS
from common.cli import fail, flag, say
from common.data import make_prompt
from common.engines import make_engine
from common.evaluation import evaluate
from common.folders import checksum, write_whole
from common.help import parse_args
from common.metrics import read_metrics
from common.models import load_model
from common.records import Problem
from common.settings import Count, validated
from common.verification import Verifier
from tools.stats import interval
from worlds import generated_problems

import tyro

LEAST = 3  # runs per entry: an interval needs several
MAY_DIFFER = ("seed", "run_dir", "resume")  # settings that may differ between an entry's runs
HEADER = """| place | entry | script | accuracy | 95 % interval | seeds | responses |
|---|---|---|---|---|---|---|
"""


@dataclass
class Args:
    name: tyro.conf.Positional[str]
    """Name of the entry; one of the same name is replaced."""
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Its run folders."""
    hidden_seed: str
    """Any text; the same for all entries, and known only to the teacher."""
    first_round: int | None = None
    """Seed of a first round, in which an entry is one run with this seed."""
    table: Path = Path("leaderboard.md")
    """The file to update; figures go to the .json of the same name."""
    dataset: str = "sums-hard"
    """The generated data set to train on, and to make hidden problems of."""
    budget: Count = 25_600
    """Responses that a run may sample for training; what evaluations sample is free."""
    problems: Count = 512
    """Hidden problems."""
    samples: Count = 4
    """Responses to each; the accuracy is the fraction of correct ones."""
    max_response_tokens: Count = 96
    """Their length limit."""


@dataclass
class Submission:
    """The contents of a run folder."""

    folder: Path
    method: str
    settings: dict[str, Any]
    rows: list[dict[str, Any]]  # one per training step

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"checkpoint-{self.settings['steps']:06d}"

    @property
    def responses(self) -> int:
        """Responses sampled for training, as recorded, with DAPO's discarded groups and VinePPO's continuations."""
        P, G = self.settings["prompts_per_step"], self.settings["responses_per_prompt"]
        return sum(row.get("sampled_prompts", P) * G + row.get("continuations", 0) for row in self.rows)


def read_submission(folder: Path) -> Submission:
    """Read a finished run; ends the program if it is not one."""
    try:
        config = json.loads((folder / "config.json").read_text())
        method, settings = config["method"], config["args"]
        rows = [row for row in read_metrics(folder) if "response_tokens" in row]
    except (OSError, ValueError, KeyError, TypeError):
        fail(f"{folder} is not a run folder: its config.json or metrics.jsonl is missing or damaged.")
    run = Submission(folder, method, settings, rows)
    if [row["step"] for row in rows] != list(range(1, settings["steps"] + 1)):
        fail(f"{folder}: {len(rows)} of {settings['steps']} steps are recorded; finish the run with --resume {folder}.")
    try:
        sums = json.loads((run.checkpoint / CHECKSUMS).read_text())
        changed = [name for name, expected in sums.items() if checksum(run.checkpoint / name) != expected]
    except (OSError, ValueError):
        fail(f"{run.checkpoint} is missing or incomplete: the accuracy is that of the last step's weights.")
    if changed or "model.safetensors" not in sums:
        fail(f"{run.checkpoint} has changed since it was written: {(changed or ['model.safetensors'])[0]}.")
    return run


def check_run(run: Submission, args: Args) -> None:
    """End the program if a run breaks the rules."""
    settings = run.settings
    if settings["model"] != "sums" or settings.get("teacher"):
        other = settings.get("teacher") or settings["model"]
        fail(f"{run.folder} starts from {other}: every entry starts from the embedded model, and from it alone.")
    if settings["dataset"] != args.dataset:
        fail(f"{run.folder} was trained on {settings['dataset']}, not on {args.dataset}.")
    group = settings["prompts_per_step"] * settings["responses_per_prompt"]
    for row in run.rows:
        sampled = row.get("sampled_prompts", settings["prompts_per_step"]) * settings["responses_per_prompt"]
        trained_on = row["response_tokens"] / row["length"] if row["length"] else 0
        if trained_on > sampled + 0.5 or sampled < group:
            fail(f"{run.folder}, step {row['step']}: what was recorded contradicts the settings.")
    if run.responses > args.budget:
        fail(f"{run.folder} sampled {run.responses} responses, more than the budget of {args.budget}.")


def check_entry(runs: list[Submission], first_round: int | None) -> None:
    """End the program if the runs do not belong together."""
    if first_round is not None:
        if [run.settings["seed"] for run in runs] != [first_round]:
            fail(f"in the first round an entry is one run with seed {first_round}.")
        return
    if len(runs) < LEAST:
        fail(f"an entry needs at least {LEAST} runs with different seeds, for an interval; {len(runs)} were given.")
    if len({run.settings["seed"] for run in runs}) < len(runs):
        fail("two of the runs have the same seed.")
    if len({checksum(run.checkpoint / "model.safetensors") for run in runs}) < len(runs):
        fail("two of the runs have the same weights.")
    first, *others = ({k: v for k, v in run.settings.items() if k not in MAY_DIFFER} for run in runs)
    for run, settings in zip(runs[1:], others, strict=True):
        if run.method != runs[0].method:
            fail(f"{run.folder} is a run of {run.method}.py, {runs[0].folder} one of {runs[0].method}.py.")
        if different := [name for name in first if settings.get(name) != first[name]]:
            fail(f"{run.folder} and {runs[0].folder} differ in {different[0]}: only the seed may.")


def hidden_problems(dataset: str, seed: str, count: int) -> list[tuple[str, Any]]:
    """Questions and answers that the data set's generator makes from the seed, none of them in the data set."""
    if dataset not in worlds.DATASETS:
        fail(f"--dataset {dataset}: hidden problems can be made for {', '.join(worlds.DATASETS)}.")
    known = {question for split in ("train", "eval") for question, _ in generated_problems(dataset, split)}
    make_problem, rng, made = worlds.problem_function(dataset), random.Random(seed), {}
    while len(made) < count:
        question, answer = make_problem(rng)
        if question not in known:
            made[question] = answer
    return list(made.items())


def accuracy(model: Path | str, pairs: list[tuple[str, Any]], args: Args) -> float:
    """A model's fraction of correct responses to hidden problems, sampled at temperature 1."""
    settings = grpo.Args(model=str(model), max_response_tokens=args.max_response_tokens)
    learner, tokenizer = load_model(settings)
    problems = [Problem(question, answer, *make_prompt(question, None, tokenizer)) for question, answer in pairs]
    with (
        closing(Verifier(settings, tokenizer, problems)) as verifier,
        closing(make_engine(settings, learner, tokenizer, problems)) as engine,
    ):
        engine.load_weights(learner)
        return evaluate(engine, verifier, problems, args.samples, settings)[0]["eval/avg"]


def rules_of(args: Args, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The rules that all entries share. A digest identifies the hidden problems without revealing them."""
    names = ("dataset", "budget", "problems", "samples", "max_response_tokens", "first_round")
    rules = {name: getattr(args, name) for name in names}
    return rules | {"hidden_seed": hashlib.sha256(json.dumps([question for question, _ in pairs]).encode()).hexdigest()}


def read_entries(path: Path, rules: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries so far; ends the program if they follow other rules."""
    try:
        board = json.loads(path.read_text()) if path.exists() else {"rules": rules, "entries": []}
        different = [name for name, value in rules.items() if board["rules"].get(name) != value]
        entries = list(board["entries"])
    except (OSError, ValueError, KeyError, TypeError):
        fail(f"{path} is damaged: restore it, or move it away to start a new leaderboard.")
    if different:
        fail(f"{path} was made with another {flag(different[0])}: all entries must have the same.")
    return entries


def render(entries: list[dict[str, Any]]) -> str:
    """The rows of the table; an entry whose interval overlaps a better one shares its place.

    Entries of a first round have no interval.
    """
    lines = []
    for e in entries:
        place = 1 + sum(other["mean"] - (other["half"] or 0) > e["mean"] + (e["half"] or 0) for other in entries)
        accuracy = f"{e['mean']:.3f} | " + ("none" if e["half"] is None else f"± {e['half']:.3f}")
        lines.append(f"| {place} | {e['name']} | {e['script']} | {accuracy} | {e['seeds']} | {e['responses']} |\n")
    return HEADER + "".join(lines)


def title(args: Args) -> str:
    """The text above the table."""
    budget = f"{args.dataset}, {args.budget} responses"
    if args.first_round is None:
        return f"# Leaderboard: {budget}\n\n"
    return f"# First round, one run with seed {args.first_round}: {budget}\n\nOne run does not rank an entry.\n\n"


def main(args: Args) -> None:
    args = validated(Args, vars(args))
    if set(args.name) & set("|\n"):
        fail("the name of an entry is one line without |.")
    runs = [read_submission(folder) for folder in args.runs]
    for run in runs:
        check_run(run, args)
    check_entry(runs, args.first_round)
    pairs = hidden_problems(args.dataset, args.hidden_seed, args.problems)
    rules = rules_of(args, pairs)
    figures = args.table.with_suffix(".json")
    others = [entry for entry in read_entries(figures, rules) if entry["name"] != args.name]

    accuracies = [accuracy(run.checkpoint, pairs, args) for run in runs]
    mean, half = interval(accuracies) if args.first_round is None else (accuracies[0], None)
    entry = {"name": args.name, "script": runs[0].method, "mean": mean, "half": half, "accuracies": accuracies}
    entry |= {"seeds": len(runs), "responses": max(run.responses for run in runs)}
    entries = sorted([*others, entry], key=lambda e: -e["mean"])
    write_whole(figures, json.dumps({"rules": rules, "entries": entries}, indent=2) + "\n")
    table = render(entries)
    write_whole(args.table, title(args) + table)
    say(table, keep="\n", end="")


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
