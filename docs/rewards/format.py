"""A reward for format alone: steps between <think> tags, then one box and nothing after it.

--reward correct=1 docs/rewards/format.py:thinks_first=0.2
"""

import re

FORM = re.compile(r"\s*<think>.+?</think>\s*\\boxed\{[^{}]*\}\s*", re.DOTALL)


def thinks_first(problem, text: str, tokens: list[int], truncated: bool) -> float:
    return float(not truncated and FORM.fullmatch(text) is not None)


def short(problems: list, texts: list[str], tokens: list[list[int]], truncated: list[bool]) -> list[float]:
    """A function of a batch: 1 for the shortest response, 0 for the longest, linear in length between."""
    lengths = [len(ids) for ids in tokens]
    low, high = min(lengths), max(lengths)
    return [1.0 if low == high else (high - length) / (high - low) for length in lengths]
