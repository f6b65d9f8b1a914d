"""A reward for form alone: steps between <think> tags, then one box and nothing behind it.

--reward correct=1 docs/rewards/format.py:thinks_first=0.2
"""

import re

FORM = re.compile(r"\s*<think>.+?</think>\s*\\boxed\{[^{}]*\}\s*", re.DOTALL)


def thinks_first(problem, text: str, tokens: list[int], truncated: bool) -> float:
    return float(not truncated and FORM.fullmatch(text) is not None)


def short(problems: list, texts: list[str], tokens: list[list[int]], truncated: list[bool]) -> list[float]:
    """Of some responses at once: 1 for the shortest of them, 0 for the longest, in between by length."""
    lengths = [len(ids) for ids in tokens]
    low, high = min(lengths), max(lengths)
    return [1.0 if low == high else (high - length) / (high - low) for length in lengths]
