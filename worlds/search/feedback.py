r"""A reward of 0 with feedback: the beginning of a correct expression, up to the first wrong sign of a response.

After `\boxed{52+7-11+3}` for `52 7 11 3 =45?` it says ` start 52+7-11-3`, a line that the embedded model has learned to
read. Without an answer it names the first two terms.

    python methods/sdpo.py --dataset search-hard --reward correct worlds/search/feedback.py:first_mistake=0 \
        --teacher-rate 0.01 --feedback " right {answer}"
"""

import itertools
import re
from typing import Any

from common.verification.answers import last_boxed
from worlds.search.problems import parse_question, solutions, with_hint

SHORTEST = 2  # terms


def first_mistake(problem: Any, text: str, tokens: list[int], truncated: bool) -> tuple[float, str]:
    search, answer = parse_question(problem.question), "" if truncated else last_boxed(text) or ""
    if search(answer):
        return 0.0, ""
    terms, correct = max((shared_terms(answer, one), one) for one in solutions(search))
    return 0.0, with_hint("", max(SHORTEST, terms + 1), correct)


def shared_terms(one: str, other: str) -> int:
    """With how many equal terms two expressions begin.

    >>> shared_terms("52+7-11+3", "52+7-11-3")
    3
    """
    pairs = zip(*(re.findall(r"[+-]?\d+", text) for text in (one, other)), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
