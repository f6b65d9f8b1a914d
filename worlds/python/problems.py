"""Functions to find from two values, such as `f(7)=21 f(2)=6 f(x)=?`; the answer is tests of the function."""

import random
import re
from collections.abc import Callable

KINDS: dict[str, Callable[[int, int], int]] = {
    "sum": lambda x, c: x + c,
    "difference": lambda x, c: x - c,
    "mirror": lambda x, c: c - x,
    "product": lambda x, c: x * c,
}


def python_problem(rng: random.Random) -> tuple[str, str]:
    """Two values of a function, and tests with two others. All values are from 0 to 99."""
    while True:
        kind, c, xs = rng.choice(list(KINDS.values())), rng.randint(2, 60), rng.sample(range(2, 31), 4)
        (x1, y1), (x2, y2), *others = [(x, kind(x, c)) for x in xs]
        if all(0 <= kind(x, c) <= 99 for x in xs) and x1 != y1:
            return f"f({x1})={y1} f({x2})={y2} f(x)=?", "\n".join(f"assert f({x}) == {y}" for x, y in others)


def values(question: str) -> list[tuple[int, int]]:
    """The pairs of x and f(x) in a question."""
    return [(int(x), int(y)) for x, y in re.findall(r"f\((\d+)\)=(\d+)", question)]


def attempts(question: str) -> dict[str, bool]:
    """Two or three functions that have the first value, and whether they have the second one too: one of them does."""
    (x1, y1), (x2, y2) = values(question)
    found = {f"x+{y1}-{x1}": x2 + y1 - x1, f"{x1}+{y1}-x": x1 + y1 - x2}
    if y1 % x1 == 0:
        found[f"x*{y1}//{x1}"] = x2 * y1 // x1
    return {body: y == y2 for body, y in found.items()}
