r"""Countdown: write an expression with a given value that uses each of 3 or 4 numbers exactly once.

This is the task of TinyZero (Pan et al., 2025). Many expressions are correct, so a problem's answer is a check.

reasoning-gym 0.1.25 also has a `countdown`, with other rules, so it does not replace this one:
- it evaluates the answer with sympy: `__import__('os').system(...)+3*7+5` ran the command; `9**9**9` took over 10 s;
- it finds numbers by `\b\d+\b` and so accepts other numbers: `(3+5+7)*0x0+0x1A` scores 1 for 3, 5, 7 and the target 26;
- it compares floats with a relative error of 1e-5: `999+1/101` scores 1 for 999;
- an incorrect answer scores 0.01 or 0.05, so methods for binary rewards refuse it;
- `3*7+5 = 26` and `3 \times 7 + 5` score 0.01; a leading minus, as in 49 of 2,304 of its own answers, scores 1;
- its problems have 4 to 6 numbers and targets from 100 to 999, and a third says "at most once" but needs all numbers.
"""

import ast
import operator
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

OPERATIONS: dict[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
SIGNS = {r"\times": "*", r"\cdot": "*", r"\div": "/", r"\left": "", r"\right": ""}
SIGNS |= {"×": "*", "·": "*", "÷": "/", "−": "-"}


def value(node: ast.AST, numbers: list[int]) -> Fraction:
    """The exact value of an expression of integers, whose numbers are added to the list; else raises ValueError."""
    match node:
        case ast.Constant(int(number)):
            numbers.append(number)
            return Fraction(number)
        case ast.BinOp(left, sign, right) if type(sign) in OPERATIONS:
            return OPERATIONS[type(sign)](value(left, numbers), value(right, numbers))
    raise ValueError("not an expression of integers with + - * /")


def read(answer: str) -> tuple[Fraction | None, list[int]]:
    """The exact value of an expression (None if it is invalid) and its numbers. Nothing is executed."""
    for sign, plain in SIGNS.items():
        answer = answer.replace(sign, plain)
    numbers: list[int] = []
    if not re.fullmatch(r"[0-9+*/() -]+", answer):  # no names, no powers of ten, no 0x1F, no 1_000
        return None, numbers
    try:
        return value(ast.parse(answer.strip(), mode="eval").body, numbers), numbers
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None, numbers


@dataclass(frozen=True)
class Countdown:
    """The check of a problem's answers: each number exactly once, and exactly the target as the value.

    >>> Countdown((3, 5, 7), 26)("3 * 7 + 5")
    True
    """

    numbers: tuple[int, ...]
    target: int

    def __call__(self, answer: str) -> bool:
        """Whether an answer is correct; it may end in `= target`."""
        result, numbers = read(re.sub(rf"=\s*{self.target}\s*$", "", answer))
        return result == self.target and sorted(numbers) == sorted(self.numbers)

    def __str__(self) -> str:
        return f"{self.target} of {', '.join(map(str, self.numbers))}"


def countdown_problem(rng: random.Random) -> tuple[str, Countdown]:
    """3 or 4 numbers from 1 to 99, and a target from 10 to 99 that can be reached through positive integers."""
    while True:
        numbers = sorted(rng.randint(1, 99) for _ in range(rng.randint(3, 4)))
        parts = numbers.copy()
        rng.shuffle(parts)
        while len(parts) > 1 and min(parts) > 0:
            a, b = parts.pop(), parts.pop()
            results = [a + b, a - b, a * b] + ([a // b] if a % b == 0 else [])
            parts.append(rng.choice(results))
            rng.shuffle(parts)
        if len(parts) == 1 and 10 <= parts[0] <= 99:
            question = (
                f"Using the numbers {', '.join(map(str, numbers))}, write an expression that equals {parts[0]}. "
                "You may use +, -, *, / and parentheses, and must use each number exactly once."
            )
            return question, Countdown(tuple(numbers), parts[0])
