"""A Python interpreter, as in ToRL, 2503.23383: the last code block of a turn is run, and its output inserted.

As in docs/rewards/code_tests.py, the code runs in a process with limits on time, memory and output, from which nothing
is kept. That stops accidents, not attacks.
"""

import re
from collections.abc import Callable
from functools import cache, lru_cache

from common.environments import Environment, Observation, Play
from common.records import Problem
from common.verification.worker import load
from worlds import WORLDS

MOST = 500  # characters of output


@cache
def sandbox() -> Callable:
    return load(f"{WORLDS.parent}/docs/rewards/code_tests.py:run")


@lru_cache(maxsize=10_000)
def output(code: str) -> str:
    """The end of what a program prints. The same program is run once, so it always has the same output."""
    done = sandbox()(code)
    return "It took too long." if done is None else done[1][-MOST:].rstrip()


def play(problem: Problem) -> Play:
    """A turn without code is the last. The verifier judges the response, or a reward function its last code."""
    answer = None
    while blocks := re.findall(r"```python\n(.*?)\n?```", (yield answer), re.DOTALL):
        answer = Observation(f"```output\n{output(blocks[-1])}\n```\n")


ENVIRONMENT = Environment(play, stop=("\n```\n",))
