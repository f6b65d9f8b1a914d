"""Lines of all scripts and what differs between any two: each line and each pair of lines is stored once."""

from functools import cache
from typing import Any

from tools import compare
from tools.scripts import parents, script_path

from pygments import lexers
from pygments.formatters import HtmlFormatter

FORMATTER = HtmlFormatter(nowrap=True)


def highlighted(text: str) -> list[str]:
    """The lines of Python code as HTML; each closes what it opens."""
    return [line.rstrip("\n") for _, line in FORMATTER._format_lines(lexers.PythonLexer().get_tokens(text))]


@cache
def code(name: str) -> list[str]:
    """The lines of a script as HTML."""
    return highlighted(script_path(name).read_text())


@cache
def numbers() -> dict[str, int]:
    """A number for each line that any script has."""
    return {line: i for i, line in enumerate(dict.fromkeys(line for name in parents() for line in code(name)))}


def numbered(name: str) -> list[int]:
    """The lines of a script by their numbers."""
    return [numbers()[line] for line in code(name)]


def below(name: str) -> int:
    """How many lines its docstring takes."""
    return len(code(name)) - len(compare.body(name))


def differences(name: str) -> dict[str, list[tuple[int, ...]]]:
    """For every script before it in the family tree, how its body becomes this one: (i1, i2, j1, j2)."""
    order = list(parents())
    found = {}
    for other in order[: order.index(name)]:
        ops = [op for group in compare.hunks(other, name, context=0) for op in group]
        found[other] = [op[1:] for op in ops if op[0] != "equal"]
    return found


def marks() -> dict[str, Any]:
    """What differs between two lines, as spans of each, by their numbers "i,j" with i < j."""
    found = {}
    for right in parents():
        for left, ops in differences(right).items():
            sides = [[*zip(numbered(name)[below(name) :], compare.body(name), strict=True)] for name in (left, right)]
            for i1, i2, j1, j2 in ops:
                for pair in zip(sides[0][i1:i2], sides[1][j1:j2], strict=False):
                    (i, mine), (j, other) = sorted(pair)
                    if any(spans := compare.spans(mine, other)):
                        found[f"{i},{j}"] = spans
    return found
