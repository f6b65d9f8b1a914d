"""math-verify as a function that `worker.py` calls: whether two answers are mathematically equal."""

import os
import re
import resource
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify

MEMORY_LIMIT = 2 << 30  # bytes of address space; an answer such as 9^{9^{9}} would take all memory
# math-verify's defaults except `units`, which would take the c of a + b + c for a unit.
CLEANING = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
)
LATEX = LatexExtractionConfig(boxed_match_priority=0, normalization_config=CLEANING)


def parse_whole(text: str) -> list[Any]:
    """The whole text as mathematics, or else as a string; by default, math-verify searches it for any number."""
    text = re.sub(r"(?<![A-Za-z\\_])i(?![A-Za-z])", " i ", text)  # 2i would be a variable; 2 i is the imaginary unit
    return parse(rf"\boxed{{{text}}}", [LATEX], extraction_mode="first_match", parsing_timeout=None)


parse_gold = lru_cache(maxsize=100_000)(parse_whole)


def is_equal(problem: SimpleNamespace, text: str | None, *_: Any) -> bool:
    """Whether a text equals `problem.payload`. Without a text, whether that answer can be read as mathematics."""
    gold = parse_gold(problem.payload)
    if text is None:
        return any(not isinstance(value, str) for value in gold)
    if not gold:
        raise ValueError("the gold answer cannot be parsed")
    # The defaults, 6 and 15 digits, would accept 1.414214 as the root of 2, and 2^{-98} as 2^{-97}.
    return verify(gold, parse_whole(text), float_rounding=15, numeric_precision=50, timeout_seconds=None)


os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # discards what sympy and its parser print
resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
# sympy loads part of itself on first use; without this line, the first answer would pay for it out of its time limit.
is_equal(SimpleNamespace(payload="x^2+2x+1"), "(x+1)^2")
