"""Base models whose writers have other habits, for claims about where reasoning comes from (2503.01307).

They are pretrained as long as the embedded model, with the same problems and schedules:
- `guess`: a random expression in the box, never tried;
- `try-once`: one expression, tried, and then boxed whatever the verdict was;
- `wrong-answers`: all habits of the embedded model's writers, but the box always holds an incorrect expression;
- `primed`: `try-once`, then ten passes over 200 solutions of `wrong-answers`.

python -m worlds.search.habits guess    # writes runs/habits/guess/
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from common.cli import fail
from worlds.pretrain import Corpus, PretrainSettings, Row, Writer, encoded, make_tokenizer, pretrain
from worlds.search.pretrain import run_schedules
from worlds.search.problems import expressions, parse_question, search_problem
from worlds.search.writers import IN_ORDER, SLIPS, attempt, box, choices_left, guess_at_many, solution

import tyro
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

FOLDER = Path("runs/habits")
EXAMPLES, PASSES, BATCH, RATE = 200, 10, 20, 1e-3  # of priming


def guess(rng: random.Random, question: str, textbook: bool) -> str:
    """An expression that was not tried."""
    return box(chosen(rng, question))


def try_once(rng: random.Random, question: str, textbook: bool) -> str:
    """One attempt, and its expression in the box."""
    text, problem = chosen(rng, question), parse_question(question)
    if text not in expressions(problem.numbers):  # a number was forgotten
        return box(text)
    return "\n".join([attempt(rng, text, problem.target, 0 if textbook else SLIPS), box(text)])


def wrong_answers(rng: random.Random, question: str, textbook: bool, in_order: float = IN_ORDER) -> str:
    """What the embedded model's writers write, with an incorrect expression in the box."""
    problem = parse_question(question)
    lines = solution(rng, question, textbook, in_order).splitlines()[:-1]
    return "\n".join([*lines, box(rng.choice([text for text in expressions(problem.numbers) if not problem(text)]))])


def chosen(rng: random.Random, question: str) -> str:
    """A random one of the expressions that a line after the question leaves."""
    problem, request = parse_question(question), question.partition("?")[2].split()
    if len(problem.numbers) > 4 and request[:1] != ["start"]:
        return guess_at_many(rng, problem)
    return rng.choice(choices_left(problem, request))


WRITERS: dict[str, tuple[Writer, Writer]] = {  # of the two schedules
    "guess": (guess, guess),
    "try-once": (try_once, try_once),
    "wrong-answers": (partial(wrong_answers, in_order=0.2), wrong_answers),
}


class Examples(Corpus):
    """A few solutions, the same in every pass."""

    def batches(self, tokenizer: PreTrainedTokenizerFast, args: PretrainSettings, start: int) -> Iterator[list[Row]]:
        rng, rows = random.Random(args.seed), []
        while len(rows) < EXAMPLES:
            question, _ = self.problem(rng)
            if question not in self.held_out:
                rows.append(encoded(tokenizer, question, self.write(rng, question, False)))
        for _ in range(PASSES):
            rng.shuffle(rows)
            yield from (rows[i : i + args.batch] for i in range(0, EXAMPLES, args.batch))


@dataclass
class Args:
    model: tyro.conf.Positional[Literal["guess", "try-once", "wrong-answers", "primed"]]
    """Which to make, in runs/habits/."""
    steps: int = 2000
    """Steps of the first schedule; the second has half as many."""


def main(args: Args) -> None:
    settings = PretrainSettings(out=FOLDER / args.model, steps=args.steps, batch=96)
    if args.model != "primed":
        run_schedules(*WRITERS[args.model], settings)
        return
    if not (FOLDER / "try-once").exists():
        fail("primed starts from try-once: run `python -m worlds.search.habits try-once` first.")
    settings = PretrainSettings(out=FOLDER / "primed", steps=PASSES * EXAMPLES // BATCH, batch=BATCH, lr=RATE)
    model = LlamaForCausalLM.from_pretrained(FOLDER / "try-once")
    pretrain(model, make_tokenizer(), Examples(search_problem, wrong_answers, ("search",)), settings)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
