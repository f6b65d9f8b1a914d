"""How the embedded model of search uses a line after the question: a budget, a hint, or feedback.

python -m benchmarks.search_prompts
"""

import random
from dataclasses import dataclass
from typing import Any

import grpo
from common.data import load_problems
from common.engines import Engine, Request, make_engine, prompt_seeds
from common.models import load_model
from common.verification.answers import last_boxed
from worlds.search.behavior import parse_attempt
from worlds.search.problems import Search, expressions, solutions, with_budget, with_feedback, with_hint

import tyro


@dataclass
class Args:
    problems: int = 96
    """Held-out problems."""
    samples: int = 8
    """Responses to each."""


def tried(text: str) -> list[str]:
    """The expressions that a response tries, and the one in its box."""
    found = [attempt.expression for line in text.split("\n") if (attempt := parse_attempt(line))]
    return [*found, last_boxed(text) or ""]


class Sampler:
    """Samples from the model; each response has its prompt's question, its problem, and its length in tokens."""

    def __init__(self, engine: Engine, tokenizer: Any, limit: int, n: int) -> None:
        self.engine, self.tokenizer, self.limit, self.n = engine, tokenizer, limit, n

    def __call__(self, questions: list[str], answers: list[Search]) -> list[tuple[str, Search, str, int]]:
        prompts = [self.tokenizer.encode(question + "\n") for question in questions]
        limits, seeds = [self.limit] * len(prompts), prompt_seeds(len(prompts), 0)
        tokens = self.engine.sample_shards(Request(prompts, self.n, limits, 1.0, seeds)).tokens
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        of_row = [pair for pair in zip(questions, answers, strict=True) for _ in range(self.n)]
        return [(*pair, text, len(row)) for pair, text, row in zip(of_row, texts, tokens, strict=True)]


def fraction(values: list[bool]) -> str:
    return f"{sum(values) / len(values):.3f}"


def main(args: Args) -> None:
    settings = grpo.Args(model="search", dataset="search", eval_problems=args.problems)
    model, tokenizer = load_model(settings)
    _, held_out = load_problems(settings, model, tokenizer)
    engine = make_engine(settings, model, tokenizer, held_out)
    sample, rng = Sampler(engine, tokenizer, settings.max_response_tokens, args.samples), random.Random(0)
    plain, answers = [p.question for p in held_out], [p.answer for p in held_out]
    known = [rng.choice(solutions(answer)) for answer in answers]
    failed = [rng.choice([text for text in expressions(a.numbers) if not a(text)]) for a in answers]

    def report(name: str, rows: list, used: list[bool]) -> None:
        correct = fraction([answer(tried(text)[-1]) for _, answer, text, _ in rows])
        tokens = sum(length for *_, length in rows) / len(rows)
        print(f"{name:22s} followed {fraction(used)}  correct {correct}  tokens {tokens:.1f}")

    rows = sample(plain, answers)
    report("no line", rows, [failed[i // args.samples] not in tried(row[2]) for i, row in enumerate(rows)])
    for budget in (30, 60, 100, 150):
        rows = sample([with_budget(question, budget) for question in plain], answers)
        report(f"within {budget} tokens", rows, [length <= budget for *_, length in rows])
    for terms in (2, 3, 4):
        rows = sample([with_hint(q, terms, text) for q, text in zip(plain, known, strict=True)], answers)
        hinted = [(question.partition("start ")[2], text) for question, _, text, _ in rows]
        report(f"start, {terms} terms", rows, [all(e.startswith(hint) for e in tried(text)) for hint, text in hinted])
    rows = sample([with_feedback(q, text) for q, text in zip(plain, known, strict=True)], answers)
    report("right", rows, [set(tried(row[2])) == {known[i // args.samples]} for i, row in enumerate(rows)])
    rows = sample([with_feedback(q, text) for q, text in zip(plain, failed, strict=True)], answers)
    report("wrong", rows, [failed[i // args.samples] not in tried(row[2]) for i, row in enumerate(rows)])


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
