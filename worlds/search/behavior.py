r"""What responses do in this world: how often they try, whether they repeat themselves, whether their lines are true.

The parser reads a response line by line. An attempt is a line such as `52-7=45-11=34+3=37 no`.
"""

import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from worlds.search.problems import EXPRESSION, Search
from worlds.search.writers import running_results

ATTEMPT = re.compile(r"(\d+)((?:[+-]\d+=\d+)+) (yes|no)", re.ASCII)
BOX = re.compile(rf"\\boxed\{{({EXPRESSION})\}}", re.ASCII)


@dataclass(frozen=True)
class Attempt:
    """One line that tries an expression."""

    expression: str
    results: list[int]  # as written
    verdict: bool  # yes

    @property
    def value(self) -> int:
        """The true value."""
        return running_results(self.expression)[-1]

    def correct_results(self) -> int:
        """How many running results are computed correctly from the one before."""
        first, *terms = map(int, re.findall(r"[+-]?\d+", self.expression))
        before = [first, *self.results[:-1]]
        return sum(a + term == b for a, term, b in zip(before, terms, self.results, strict=True))


def parse_attempt(line: str) -> Attempt | None:
    """The attempt in a line, or None.

    >>> parse_attempt("52-7=45-11=34 no").expression
    '52-7-11'
    """
    if not (match := ATTEMPT.fullmatch(line)):
        return None
    first, steps, verdict = match.groups()
    results = [int(result) for result in re.findall(r"=(\d+)", steps)]
    return Attempt(first + re.sub(r"=\d+", "", steps), results, verdict == "yes")


def count(problem: Search, response: str) -> Counter[str]:
    """What one response did, as numbers that add up over responses."""
    lines = response.split("\n")
    attempts = [attempt for line in lines if (attempt := parse_attempt(line))]
    found = Counter(responses=1, tries=bool(attempts), attempts=len(attempts))
    for i, attempt in enumerate(attempts):
        found["repeated"] += attempt.expression in {earlier.expression for earlier in attempts[:i]}
        found["uses_numbers"] += tuple(map(abs, terms(attempt))) == problem.numbers
        found["results"] += len(attempt.results)
        found["correct_results"] += attempt.correct_results()
        said = "yes" if attempt.verdict else "no"
        found[said] += 1
        found[f"correct_{said}"] += attempt.verdict == (attempt.results[-1] == problem.target)
    found["backtracks"] = sum(not attempt.verdict for attempt in attempts[:-1])
    for before, after in pairwise(attempts):
        if not before.verdict:
            found["nearer"] += abs(after.value - problem.target) < abs(before.value - problem.target)
    if box := BOX.search(lines[-1]):
        found["boxes"] = 1
        found["boxed_after_yes"] = bool(attempts) and attempts[-1].verdict and attempts[-1].expression == box[1]
    return found


def terms(attempt: Attempt) -> list[int]:
    return [int(term) for term in re.findall(r"[+-]?\d+", attempt.expression)]


def measure(problems: list[Search], responses: list[str]) -> dict[str, float | None]:
    """Means over responses, attempts, or lines; None if there is nothing to average.

    attempts: per response. tries: fraction of responses with an attempt. Fractions of all attempts: repeated_attempts
    (the same expression as earlier in the response), uses_numbers (all of the problem's, in order). Fractions of what
    was written: correct_results (running results), correct_yes and correct_no (verdicts on the result as written).
    backtracking: fraction of `no` followed by another attempt; nearer: fraction of these whose value is nearer to the
    target than the one before. boxed_after_yes: fraction of boxes with the expression of a `yes` just before.
    """
    total = sum((count(p, text) for p, text in zip(problems, responses, strict=True)), Counter())
    fractions = {
        "attempts": ("attempts", "responses"),
        "tries": ("tries", "responses"),
        "repeated_attempts": ("repeated", "attempts"),
        "uses_numbers": ("uses_numbers", "attempts"),
        "correct_results": ("correct_results", "results"),
        "correct_yes": ("correct_yes", "yes"),
        "correct_no": ("correct_no", "no"),
        "backtracking": ("backtracks", "no"),
        "nearer": ("nearer", "backtracks"),
        "boxed_after_yes": ("boxed_after_yes", "boxes"),
    }
    return {name: total[of] / total[all] if total[all] else None for name, (of, all) in fractions.items()}
