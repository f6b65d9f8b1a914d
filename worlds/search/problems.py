r"""Put plus and minus between some numbers so that the expression has a given value: `52 7 11 3 =45?`.

Several expressions may be correct, so a problem's answer is a check. There are 2^(n-1) ways to set the signs of n
numbers, and the only way to find the correct ones is to try them.

A prompt may have one more line, which the embedded model has learned to use:
- `within 60 tokens`: a budget for the response (L1, 2503.04697);
- `start 52+7`: the first terms of a correct expression (a hint, as in curricula and POPE);
- `wrong 52+7+11+3` or `right 52+7-11-3`: an expression that failed or succeeded before (feedback, as in SDPO).
"""

import itertools
import random
import re
from dataclasses import dataclass

from worlds.countdown.problems import read

EXPRESSION = r"\d+(?:[+-]\d+)*"


@dataclass(frozen=True)
class Search:
    """The check of a problem's answers: plus and minus only, each number exactly once, and exactly the target as value.

    >>> Search((52, 7, 11, 3), 45)("52+7-11-3")
    True
    """

    numbers: tuple[int, ...]
    target: int

    def __call__(self, answer: str) -> bool:
        """Whether an answer is correct. Any order of the numbers is; nothing is executed."""
        answer = answer.replace(" ", "")
        if not re.fullmatch(EXPRESSION, answer, re.ASCII):
            return False
        value, numbers = read(answer)
        return value == self.target and sorted(numbers) == sorted(self.numbers)

    def __str__(self) -> str:
        return f"{self.target} from {', '.join(map(str, self.numbers))}"


def expressions(numbers: tuple[int, ...]) -> list[str]:
    """Every way to put plus and minus between the numbers, in the given order."""
    first, *rest = map(str, numbers)
    choices = itertools.product("+-", repeat=len(rest))
    return [first + "".join(map(str.__add__, signs, rest)) for signs in choices]


def search_problem(rng: random.Random, min_numbers: int = 4, max_numbers: int = 4) -> tuple[str, Search]:
    """A question, and the check of its answers. The running results of all its expressions are from 0 to 99."""
    count = rng.randint(min_numbers, max_numbers)
    while True:
        rest = [rng.randint(1, 19) for _ in range(count - 1)]
        if sum(rest) <= 49:
            break
    numbers = (rng.randint(sum(rest), 99 - sum(rest)), *rest)
    target = numbers[0] + sum(rng.choice((-1, 1)) * number for number in rest)
    return f"{' '.join(map(str, numbers))} ={target}?", Search(numbers, target)


def hard_search_problem(rng: random.Random) -> tuple[str, Search]:
    """A problem of 5 or 6 numbers: 16 or 32 expressions."""
    return search_problem(rng, 5, 6)


def parse_question(question: str) -> Search:
    """The numbers and the target of a question, whatever follows its question mark."""
    numbers, _, target = question.partition("?")[0].partition(" =")
    return Search(tuple(map(int, numbers.split())), int(target))


def solutions(problem: Search) -> list[str]:
    """The correct expressions with the numbers in their order."""
    return [text for text in expressions(problem.numbers) if problem(text)]


def chance(problem: Search, k: int = 1) -> float:
    """The chance that a correct expression is among k that are drawn at random, each from all."""
    return 1 - (1 - len(solutions(problem)) / len(expressions(problem.numbers))) ** k


def with_budget(question: str, tokens: int) -> str:
    """The question with a budget for the response, EOS included."""
    return f"{question} within {tokens} tokens"


def with_hint(question: str, terms: int, solution: str) -> str:
    """The question with the first `terms` numbers of a correct expression and their signs."""
    return f"{question} start {''.join(re.findall(r'[+-]?[0-9]+', solution)[:terms])}"


def with_feedback(question: str, expression: str) -> str:
    """The question with an expression that was tried before, and whether it was correct."""
    return f"{question} {'right' if parse_question(question)(expression) else 'wrong'} {expression}"
