"""Solutions of training questions, for methods that show them to the model or train on them."""

from typing import Any

import worlds
from common.cli import fail
from common.data import settings_of_each
from common.models import context_length
from common.records import Problem, Rollouts
from common.rows import STANDARD, questions, read_dataset
from common.settings import dataset_names, is_generated


def load_solutions(args: Any, short: bool = False) -> dict[str, str]:
    """The solution to each training question: `args.solution_column`, or what a writer of the data set's world writes.

    `short` solutions are for prompts: in the world of search, an expression without the search for it.
    """
    found: dict[str, str] = {}
    for one in settings_of_each(args, len(dataset_names(args))):
        column = args.solution_column
        if is_generated(one.dataset):
            found |= worlds.solutions(one.dataset, short)
            continue
        if known := STANDARD.get(one.dataset):
            one.question_column, one.train_split = known.question_column, known.train_split
            column = known.answer_column
        given = f"--dataset {one.dataset}"
        rows = read_dataset(one.dataset, one.dataset_config, one.train_split).flatten()
        if column not in rows.column_names:
            fail(f"{given} has no column '{column}': use --solution-column with one of {', '.join(rows.column_names)}.")
        found |= {str(q): str(text) for q, text in zip(questions(rows, one, given), rows[column], strict=True) if text}
    return found


def solutions_to(train: list[Problem], args: Any, short: bool = False) -> dict[str, str]:
    """`load_solutions`, where every training problem must have one."""
    texts = load_solutions(args, short)
    if absent := [problem for problem in train if problem.question not in texts]:
        fail(f"{len(absent)} of {len(train)} training problems have no solution: {absent[0].question!r:.80}")
    return texts


def load_demonstrations(train: list[Problem], model: Any, tokenizer: Any, args: Any) -> dict[str, list[int]]:
    """The solutions as responses: token ids, EOS included, of the solution to every training question."""
    texts = solutions_to(train, args)
    ids = tokenizer([texts[problem.question] for problem in train], add_special_tokens=False)["input_ids"]
    for problem, tokens in zip(train, ids, strict=True):
        if len(problem.prompt_ids) + len(tokens) >= context_length(model):
            fail(f"a solution of {len(tokens)} tokens exceeds the model's context: {problem.prompt[:80]!r}")
    return {problem.question: [*tokens, tokenizer.eos_token_id] for problem, tokens in zip(train, ids, strict=True)}


def as_responses(problems: list[Problem], demonstrations: dict[str, list[int]]) -> Rollouts:
    """The demonstration for each problem as a response, whose tokens the engine did not sample."""
    rows = [demonstrations[problem.question] for problem in problems]
    zeros, unsampled = ([[value] * len(row) for row in rows] for value in (0.0, False))
    return Rollouts(rows, zeros, [False] * len(rows), unsampled)


def before_groups(first: Rollouts, rollouts: Rollouts) -> Rollouts:
    """Groups with one more response in front of each, from `first`."""
    groups = rollouts.split(len(rollouts.tokens) // len(first.tokens))
    return Rollouts.join(part for pair in zip(first.split(1), groups, strict=True) for part in pair)
