"""The process that runs math-verify: reads `[gold, answer]` lines, writes a verdict for each.

A child of it does the work. What takes too long or takes all memory ends the child alone, and the
next one is a fork away: the imports, half a second of them, are not paid again.
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

MEMORY_LIMIT = 2 << 30  # bytes of address space; an answer such as 9^{9^{9}} would take all there is
# As math-verify has it but for the units: it would take the c of a + b + c for one.
CLEANING = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
)
LATEX = LatexExtractionConfig(boxed_match_priority=0, normalization_config=CLEANING)


def parse_whole(text: str) -> list:
    """All of a text as mathematics or, failing that, itself; math-verify would look for any number in it."""
    text = re.sub(r"(?<![A-Za-z\\_])i(?![A-Za-z])", " i ", text)  # 2i would be a variable, 2 i the imaginary unit
    return parse(rf"\boxed{{{text}}}", [LATEX], extraction_mode="first_match", parsing_timeout=None)


parse_gold = lru_cache(maxsize=100_000)(parse_whole)


def judge(gold: str, answer: str | None) -> str:
    parsed = parse_gold(gold)
    if not parsed:
        return "unparsed gold"
    if answer is None:
        return "right"
    # With its usual 6 and 15 digits 1.414214 would be the root of 2, and 2^{-98} equal to 2^{-97}.
    same = verify(parsed, parse_whole(answer), float_rounding=15, numeric_precision=50, timeout_seconds=None)
    return "right" if same else "wrong"


def serve(time_limit: float) -> None:
    """Answer line by line until the input ends. No handler stands behind the timer: the kernel ends this process.

    The time is the processor's, so that no verdict depends on what else the machine does.
    """
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, time_limit)
        try:
            verdict = judge(*json.loads(line))
        except Exception as error:  # a hostile answer must not end the worker
            verdict = type(error).__name__
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(verdict.replace("\n", " "), flush=True)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # for the run, which ends this process itself
        signal.signal(number, signal.SIG_IGN)
    judge("x^2+2x+1", "(x+1)^2")  # loads what sympy loads late: no part of the time of a child's first answer
    print("ready", flush=True)
    while True:
        child = os.fork()
        if child == 0:
            serve(float(sys.argv[1]))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            break
        print("timeout" if status == -signal.SIGPROF else "crash", flush=True)
