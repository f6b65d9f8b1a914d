"""Compare scripts: what one method changes in another.

python -m tools.compare                  # the family tree, with the lines of code that differ
python -m tools.compare grpo dapo        # both formulas, then the lines that differ, in two columns
python -m tools.compare --sync grpo      # apply the uncommitted changes of grpo.py to all other scripts
"""

import ast
import difflib
import io
import itertools
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tokenize
from functools import cache
from pathlib import Path

from common.cli import fail
from tools.scripts import ROOT, docstring, parents, parse, script_path

Span = tuple[int, int]
MARKS = ("\033[7m", "\033[0m") if sys.stdout.isatty() else ("«", "»")  # around the differences within a line


def code(name: str) -> list[str]:
    """The lines of a script without docstrings, help texts, comments and blank lines."""
    return code_lines(script_path(name).read_text())


def code_lines(text: str) -> list[str]:
    """The lines of a Python file without docstrings, help texts, comments and blank lines."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    for node in ast.walk(parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return [line for line in lines if line.strip()]


def count(a: str, b: str) -> int:
    """The number of lines of code that differ between two scripts."""
    changes = difflib.SequenceMatcher(None, code(a), code(b), autojunk=False).get_opcodes()
    return sum(i2 - i1 + j2 - j1 for tag, i1, i2, j1, j2 in changes if tag != "equal")


def family_tree(name: str = "reinforce", depth: int = 0) -> str:
    """One line per script: its place, and how many lines of code differ from its parent."""
    above, path = parents()[name], script_path(name).relative_to(ROOT)
    note = f"{count(above, name)} lines from {above}.py" if above else "the root"
    lines = [f"{'    ' * depth}{path}".ljust(44) + note]
    lines += [family_tree(child, depth + 1) for child, up in parents().items() if up == name]
    return "\n".join(lines)


def formula(name: str) -> str:
    """The indented formulas of a script's docstring."""
    paragraphs = docstring(script_path(name)).split("\n\n")
    return "\n".join(p for p in paragraphs if p.startswith("    ") and not p.startswith("    python"))


@cache
def body(name: str) -> tuple[str, ...]:
    """The lines of a script after its docstring."""
    text = script_path(name).read_text()
    return tuple(text.splitlines()[parse(text).body[0].end_lineno :])


@cache
def hunks(a: str, b: str, context: int = 2) -> list[list[tuple[str, int, int, int, int]]]:
    """How the body of one script becomes another's, in difflib's groups; the reverse is the mirror image."""
    order = list(parents())
    if order.index(a) > order.index(b):
        return [[(tag, j1, j2, i1, i2) for tag, i1, i2, j1, j2 in group] for group in hunks(b, a, context)]
    return list(difflib.SequenceMatcher(None, body(a), body(b), autojunk=False).get_grouped_opcodes(context))


@cache
def spans(mine: str, other: str) -> tuple[list[Span], list[Span]]:
    """What differs between two lines, in whole words, as (start, end); nothing if they have little in common."""
    if mine > other:
        return spans(other, mine)[::-1]
    if not mine or difflib.SequenceMatcher(None, mine, other).ratio() <= 0.5:
        return [], []
    return differing_words(mine, other), differing_words(other, mine)


def differing_words(mine: str, other: str) -> list[Span]:
    a, b = (re.findall(r"\w+|\s+|.", line) for line in (mine, other))
    ends = [0, *itertools.accumulate(map(len, a))]
    changed = [op for op in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes() if op[0] != "equal"]
    return [(ends[i], ends[j]) for _, i, j, _, _ in changed if "".join(a[i:j]).strip()]


def marked(line: str, parts: list[Span]) -> str:
    """A line with marks around some of its parts."""
    for start, end in reversed(parts):
        line = line[:start] + MARKS[0] + line[start:end] + MARKS[1] + line[end:]
    return line


def wrapped(line: str, width: int) -> list[str]:
    """A line in pieces of at most `width` visible characters; color marks take no room."""
    invisible = MARKS if MARKS[0].startswith("\033") else ()
    pieces, piece, room = [], "", width
    for part in re.findall("|".join(map(re.escape, [*MARKS])) + "|.", line):
        size = 0 if part in invisible else len(part)
        if size > room:
            pieces.append(piece)
            piece, room = "    ", width - 4
        piece, room = piece + part, room - size
    return [*pieces, piece]


def visible(text: str) -> int:
    return len(re.sub("\033\\[\\d+m", "", text))


def print_side_by_side(a: str, b: str) -> None:
    """Formulas, then the differing lines of two scripts in two columns, each hunk with two lines around it."""
    for name in (a, b):
        print(f"{script_path(name).relative_to(ROOT)}\n{formula(name)}\n")
    left, right = body(a), body(b)
    width = max(40, (shutil.get_terminal_size((160, 50)).columns - 3) // 2)
    for group in hunks(a, b):
        print("─" * width + "─┼─" + "─" * width)
        for tag, i1, i2, j1, j2 in group:
            for mine, other in itertools.zip_longest(left[i1:i2], right[j1:j2], fillvalue=""):
                parts = ([], []) if tag == "equal" else spans(mine, other)
                pair = [wrapped(marked(*of_line), width) for of_line in zip((mine, other), parts, strict=True)]
                for x, y in itertools.zip_longest(*pair, fillvalue=""):
                    print(f"{x}{' ' * (width - visible(x))} {'│' if tag == 'equal' else '┃'} {y}".rstrip())


def sync(name: str) -> None:
    """Merge the uncommitted changes of one script into all others; conflicts are reported and left out."""
    path = script_path(name)
    shown = subprocess.run(
        ["git", "-C", str(ROOT), "show", f"HEAD:{path.relative_to(ROOT)}"], capture_output=True, text=True
    )
    if shown.returncode != 0:
        fail(f"--sync compares with the last commit, which has no {path.name}: {shown.stderr.strip()}")
    with tempfile.NamedTemporaryFile("w", suffix=".py") as before:
        before.write(shown.stdout)
        before.flush()
        for other in parents():
            target = script_path(other)
            if target == path:
                continue
            merge = ["git", "merge-file", "-p", str(target), before.name, str(path)]
            result = subprocess.run(merge, capture_output=True, text=True)
            if result.returncode:
                print(f"{other}: {result.returncode} conflicts, nothing was changed", flush=True)
            elif result.stdout != target.read_text():
                target.write_text(result.stdout)
                print(f"{other}: changed", flush=True)


def main(arguments: list[str]) -> None:
    match arguments:
        case []:
            print(family_tree())
        case ["--sync", name]:
            sync(name)
        case [a, b]:
            print_side_by_side(Path(a).stem, Path(b).stem)
        case _:
            fail("name two scripts, or none for the family tree: python -m tools.compare grpo dapo")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it silently
    main(sys.argv[1:])
