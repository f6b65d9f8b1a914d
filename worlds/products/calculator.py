"""The calculator that a response may call: it finds calls in a response's tokens and computes their results."""

import re
from bisect import bisect_left
from typing import Any

from common.cli import fail
from worlds.countdown.problems import read


def calculate(expression: str) -> str:
    """The exact value of an expression of integers with + - * /, possibly a fraction, or "error"."""
    value = read(expression)[0] if len(expression) <= 50 else None  # parsed, never executed
    return "error" if value is None else str(value)


def find_call(tokens: list[int], start: int, tokenizer: Any, pattern: str) -> tuple[int, list[int]] | None:
    """Where the first call after token `start` ends, and the tokens of its result; None if there is no call."""

    def called(end: int) -> re.Match | None:
        return re.search(pattern, tokenizer.decode(tokens[start:end]))

    if not called(len(tokens)):
        return None
    end = bisect_left(range(len(tokens)), True, lo=start, key=lambda end: called(end) is not None)
    return end, tokenizer(calculate(called(end)[1]), add_special_tokens=False)["input_ids"]


def check_call(pattern: str) -> None:
    """End the program if --call is not a regular expression with one group."""
    try:
        groups = re.compile(pattern).groups
    except re.error:
        groups = None
    if groups != 1:
        fail(f"--call {pattern} must be a regular expression with one group, for the expression to compute.")
