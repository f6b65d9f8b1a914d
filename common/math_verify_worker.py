"""The process that runs math-verify: reads `[gold, answer]` lines, writes a verdict for each."""

import json
import resource
import sys
from functools import lru_cache

from math_verify import parse, verify

MEMORY_LIMIT = 2 << 30  # bytes of address space; an answer such as 9^{9^{9}} would take all there is


@lru_cache(maxsize=100_000)
def parse_gold(gold: str) -> tuple:
    """The gold must be marked as mathematics: math-verify parses bare text to nothing."""
    return tuple(parse(rf"\boxed{{{gold}}}", parsing_timeout=None))


def judge(gold: str, answer: str | None) -> str:
    parsed = parse_gold(gold)
    if not parsed:
        return "unparsed gold"
    if answer is None:
        return "right"
    guess = parse(rf"\boxed{{{answer}}}", parsing_timeout=None)
    return "right" if verify(list(parsed), guess, timeout_seconds=None) else "wrong"


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    judge("x", "x")  # loads what sympy loads late, which is no part of the first answer's time
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            verdict = judge(*json.loads(line))
        except Exception as error:  # a hostile answer must not end the worker
            verdict = type(error).__name__
        print(verdict.replace("\n", " "), flush=True)
