r"""The imperfect writers whose solutions the base model is pretrained on.

An attempt is an expression with its running results and a verdict, `yes` or `no`. Three in ten writers box an
expression without trying it. The others try one. After each `no` they give up with probability 0.6 and box what failed,
or they try another:

    52+7=59+11=70+3=73 no
    52-7=45-11=34+3=37 no
    52+7=59-11=48-3=45 yes
    \boxed{52+7-11-3}

Two in three of them choose each attempt at random, so they repeat themselves; the others go through the expressions in
order. So the corpus has everything that a good search needs, and few good searches.
"""

import itertools
import random
import re
from collections.abc import Iterator
from operator import mul

from worlds.search.problems import (
    Search,
    expressions,
    hard_search_problem,
    parse_question,
    search_problem,
    solutions,
    with_budget,
    with_feedback,
    with_hint,
)

GUESSES = 0.3  # writers who box an expression without trying it
GIVES_UP = 0.6  # after each attempt that failed
SLIPS = 0.01  # a running result is wrong
KEEPS_BUDGET = 0.9
MOST_ATTEMPTS = 10  # in a textbook solution
IN_ORDER, IN_ORDER_TEXTBOOK = 0.35, 0.5  # writers who go through the expressions in order


def corpus_problem(rng: random.Random) -> tuple[str, Search]:
    """A question of the corpus: 7 in 10 are plain; the others have a line with a budget, a hint, or feedback."""
    kind = rng.choices(("plain", "budget", "hint", "feedback", "hard hint", "hard"), (70, 8, 6, 7, 6, 3))[0]
    question, problem = hard_search_problem(rng) if "hard" in kind else search_problem(rng)
    known = rng.choice(solutions(problem))
    if kind == "budget":
        question = with_budget(question, rng.randint(2, 16) * 10)
    elif "hint" in kind:
        most = len(problem.numbers) - 1
        question = with_hint(question, rng.randint(max(2, most - 2), most), known)
    elif kind == "feedback":
        tried = known if rng.random() < 0.5 else rng.choice(expressions(problem.numbers))
        question = with_feedback(question, tried)
    return question, problem


def solution(rng: random.Random, question: str, textbook: bool, in_order: float = IN_ORDER) -> str:
    """One writer's solution, ending in a box. A textbook solution has no error, and a `yes` unless a budget ends it."""
    problem, request = parse_question(question), question.partition("?")[2].split()
    if len(problem.numbers) > 4 and request[:1] != ["start"]:
        return box(guess_at_many(rng, problem))
    choices = choices_left(problem, request)
    budget = int(request[1]) if request[:1] == ["within"] and (textbook or rng.random() < KEEPS_BUDGET) else None
    if not textbook and not budget and rng.random() < GUESSES:
        return box(rng.choice(choices))
    orderly = rng.random() < (IN_ORDER_TEXTBOOK if textbook else in_order)
    lines, boxed = [], ""
    for text in attempts(rng, choices, orderly):
        line = attempt(rng, text, problem.target, 0 if textbook else SLIPS)
        if budget and len("\n".join([*lines, line, box(text)])) + 1 > budget:
            return "\n".join([*lines, box(boxed or text)])
        lines, boxed = [*lines, line], text
        if line.endswith("yes"):
            break
        if budget is None and (len(lines) == MOST_ATTEMPTS if textbook else rng.random() < GIVES_UP):
            return solution(rng, question, textbook) if textbook else "\n".join([*lines, box(boxed)])
    return "\n".join([*lines, box(boxed)])


def choices_left(problem: Search, request: list[str]) -> list[str]:
    """The expressions that a hint or feedback leaves."""
    choices = expressions(problem.numbers)
    if request[:1] == ["start"]:
        return [text for text in choices if text.startswith(request[1])]
    if request[:1] == ["wrong"]:
        choices.remove(request[1])
    return [request[1]] if request[:1] == ["right"] else choices


def attempts(rng: random.Random, choices: list[str], in_order: bool) -> Iterator[str]:
    """Expressions as a writer tries them: at random, or in cyclic order from a random start."""
    start = rng.randrange(len(choices))
    for i in itertools.count(start):
        yield choices[i % len(choices)] if in_order else rng.choice(choices)


def running_results(expression: str) -> list[int]:
    """The value after each term.

    >>> running_results("52+7-11")
    [52, 59, 48]
    """
    results, total = [], 0
    for term in re.findall(r"[+-]?\d+", expression):
        results.append(total := total + int(term))
    return results


def attempt(rng: random.Random, expression: str, target: int, slips: float) -> str:
    """The line of an attempt. Each running result is wrong with probability `slips`; the next ones follow from it."""
    first, *rest = re.findall(r"[+-]?\d+", expression)
    line, total = first, int(first)
    for term in rest:
        total += int(term)
        if rng.random() < slips:
            total = max(0, total + rng.choice((-10, -1, 1, 10)))
        line += f"{term}={total}"
    return f"{line} {'yes' if total == target else 'no'}"


def guess_at_many(rng: random.Random, problem: Search) -> str:
    """A random expression of more than four numbers, of which most writers forget one."""
    numbers = list(problem.numbers)
    if rng.random() < 0.7:
        del numbers[rng.randrange(1, len(numbers))]
    return rng.choice(expressions(tuple(numbers)))


def short_solution(question: str) -> str:
    """A correct expression, always the same one: what a hint begins with.

    >>> short_solution("52 7 11 3 =45?")
    '52+7-11-3'
    """
    problem = parse_question(question)
    first, *rest = problem.numbers
    signs = [
        s for s in itertools.product((1, -1), repeat=len(rest)) if first + sum(map(mul, s, rest)) == problem.target
    ]
    chosen = random.Random(question).choice(signs)
    return f"{first}" + "".join(f"{sign * number:+d}" for sign, number in zip(chosen, rest, strict=True))


def demonstration(question: str) -> str:
    """A textbook solution to a question of any size, always the same one: only the last two signs are searched for.

    >>> demonstration("52 7 11 3 =45?").splitlines()[-1]
    '\\\\boxed{52+7-11-3}'
    """
    terms = len(parse_question(question).numbers) - 2
    return solution(random.Random(question), with_hint(question, terms, short_solution(question)), textbook=True)


def box(text: str) -> str:
    return rf"\boxed{{{text}}}"
