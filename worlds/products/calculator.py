"""The calculator that a response may call, as an environment: it computes the first call of each turn."""

import re
from bisect import bisect_left
from functools import partial

from common.cli import fail
from common.environments import Environment, Observation, Play
from common.records import Problem
from worlds.countdown.problems import read

CALL = "<<([^<>]*)>>"


def calculate(expression: str) -> str:
    """The exact value of an expression of integers with + - * /, possibly a fraction, or "error"."""
    value = read(expression)[0] if len(expression) <= 50 else None  # parsed, never executed
    return "error" if value is None else str(value)


def play(problem: Problem, call: str = CALL) -> Play:
    """Answer calls; a turn without one is the last. The verifier judges the response."""
    text = yield
    while re.search(call, text):
        end = bisect_left(range(len(text)), True, key=lambda end: re.search(call, text[:end]) is not None)
        text = yield Observation(calculate(re.search(call, text[:end])[1]), read=end)


def calculator(call: str) -> Environment:
    """The calculator for calls that look like `call`. Ends the program if that is not an expression with one group."""
    try:
        groups = re.compile(call).groups
    except re.error:
        groups = None
    if groups != 1:
        fail(f"--call {call} must be a regular expression with one group, for the expression to compute.")
    return Environment(partial(play, call=call))


ENVIRONMENT = Environment(play, stop=(">>",))
