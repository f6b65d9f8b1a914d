"""Countdown with a part of the reward for a valid expression that misses the target, as TinyZero gives one.

--dataset countdown --reward docs/rewards/countdown.py:partial_credit
"""

import re

from common.verification.answers import last_boxed
from worlds.countdown.problems import Countdown, read


def partial_credit(problem, text: str, tokens: list[int], truncated: bool) -> float:
    """1 for the target, 0.1 for another value of the right numbers, else 0."""
    numbers, target = re.search(r"numbers ([0-9, ]+), write an expression that equals (\d+)", problem.question).groups()
    numbers, answer = tuple(map(int, numbers.split(","))), last_boxed(text) or ""
    if Countdown(numbers, int(target))(answer):
        return 1.0
    value, used = read(answer)
    return 0.1 if value is not None and sorted(used) == sorted(numbers) else 0.0
