"""Countdown with a small reward for a valid expression that misses the target, as in TinyZero.

--dataset countdown --reward docs/rewards/countdown.py:partial_credit
"""

import re

from worlds.countdown.problems import Countdown, read


def partial_credit(problem, text: str, tokens: list[int], truncated: bool) -> float:
    """1 for the target, 0.1 for another value of the given numbers, else 0."""
    numbers, target = re.search(r"numbers ([0-9, ]+), write an expression that equals (\d+)", problem.question).groups()
    numbers, boxes = tuple(map(int, numbers.split(","))), re.findall(r"\\boxed\{([^{}]*)\}", text)
    answer = boxes[-1] if boxes else ""
    if Countdown(numbers, int(target))(answer):
        return 1.0
    value, used = read(answer)
    return 0.1 if value is not None and sorted(used) == sorted(numbers) else 0.0
