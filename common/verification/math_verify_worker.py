"""The program of the workers that run math-verify: reads `[gold, answer]`, replies whether they are equal.

A child process does the work. An answer that takes too much time or memory ends only the child, and the next child is
a fork away, without half a second of imports.
"""

import json
import os
import re
import resource
import signal
import sys
from functools import lru_cache

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify

MEMORY_LIMIT = 2 << 30  # bytes of address space; an answer such as 9^{9^{9}} would take all memory
# math-verify's defaults except `units`, which would take the c of a + b + c for a unit.
CLEANING = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
)
LATEX = LatexExtractionConfig(boxed_match_priority=0, normalization_config=CLEANING)


def parse_whole(text: str) -> list:
    """All of a text as mathematics or else as a string; math-verify by default searches it for any number."""
    text = re.sub(r"(?<![A-Za-z\\_])i(?![A-Za-z])", " i ", text)  # 2i would be a variable, 2 i the imaginary unit
    return parse(rf"\boxed{{{text}}}", [LATEX], extraction_mode="first_match", parsing_timeout=None)


parse_gold = lru_cache(maxsize=100_000)(parse_whole)


def is_equal(gold: str, answer: str) -> bool:
    # The defaults, 6 and 15 digits, take 1.414214 for the root of 2, and 2^{-98} for 2^{-97}.
    pair = parse_gold(gold), parse_whole(answer)
    return bool(verify(*pair, float_rounding=15, numeric_precision=50, timeout_seconds=None))


def check(gold: str, answer: str | None) -> dict[str, object]:
    """Whether an answer equals the gold. Without an answer, only the gold is parsed."""
    if not parse_gold(gold):
        return {"failed": "math-verify cannot parse it"}
    return {"value": answer is None or is_equal(gold, answer)}


def reply(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def serve(seconds: float) -> None:
    """Answer line by line until the input ends. Nothing handles the timer's signal: the kernel ends this process.

    The limit is on processor time, so that no verdict depends on how busy the machine is.
    """
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            found = check(*json.loads(line))
        except Exception as error:  # a hostile answer must not end the worker
            found = {"failed": type(error).__name__}
        signal.setitimer(signal.ITIMER_PROF, 0)
        reply(**found)


if __name__ == "__main__":
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the run ends its workers itself
        signal.signal(number, signal.SIG_IGN)
    is_equal("x^2+2x+1", "(x+1)^2")  # what sympy loads late must not count against the first answer's limit
    reply(value=True)
    while True:
        child = os.fork()
        if child == 0:
            serve(float(sys.argv[1]))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            break
        reply(failed="timeout" if status == -signal.SIGPROF else "crash")
