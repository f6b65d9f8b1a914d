"""List a class's functions that are worth comparing side by side.

    python -m notebooks.exercises.similar SUBMISSIONS --out similar.md          # with --key: the functions of a key

Each function that a student wrote is compared with the other students' and with this repository's script, as a set of
expressions and statements. Names of local variables, comments, docstrings, annotations, the order of statements and of
the operands of + and * do not count. Helper functions in the same file belong to the function that calls them.
Functions with fewer than --least expressions are left out, because there are few ways to write them. If both
functions of a pair are at least as similar to the script as to each other, they are listed only with the script.

A high similarity proves nothing. The scripts' functions are the model solutions, and students read them for the
lessons: short functions look like them if they are correct. No code is run.
"""

import ast
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from common.cli import fail, printable, say
from common.folders import write_whole
from common.help import parse_args
from common.settings import Count, validated
from notebooks.exercises.exercises import EXERCISES, Exercise, functions
from notebooks.exercises.files import Unusable, read
from notebooks.exercises.grade_class import subfolders
from notebooks.exercises.key import check_key
from notebooks.exercises.variants import variants

import tyro

SCRIPT = "this repository/solution"  # no folder has such a name
COMMUTATIVE = (ast.Add, ast.Mult)
LONGEST = 1 << 16  # bytes; comparing a longer file takes minutes, so it is only named


@dataclass
class Args:
    submissions: tyro.conf.Positional[Path]
    """The folder with a subfolder for each student."""
    out: Path | None = None
    """A Markdown file for the list and the functions."""
    key: str | None = None
    """The key of the class: compare the functions that it draws."""
    top: Count = 20
    """Pairs to list, of submissions and with the scripts."""
    least: Count = 15
    """Expressions and statements that a function must have."""


class Function(NamedTuple):
    """A student's or a script's function, with the helpers that it calls."""

    shapes: Counter[int]  # how often each expression and statement occurs
    source: str


class Pair(NamedTuple):
    """Two functions for the same exercise."""

    similarity: float  # 1 if both have the same expressions and statements
    one: Function
    other: Function
    exercise: Exercise
    names: tuple[str, str]

    def __str__(self) -> str:
        return f"{self.similarity:.2f}  {self.exercise.name}  {' and '.join(map(printable, self.names))}"


def find_function(text: str, name: str, given: Iterable[str] = ()) -> Function | None:
    """A function in a file's text, or None if it is not there or the file is not Python.

    The functions that it calls belong to it, except those `given` in the handout and those that are exercises.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings would show students' text
            tree = ast.parse(text)
        found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        if name not in found:
            return None
        nodes = [found.pop(name)]
        for node in nodes:  # the list grows
            called = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            nodes += [found.pop(other) for other in sorted(called & set(found) - set(given))]
        source = "\n\n".join(ast.get_source_segment(text, node) or "" for node in nodes)
        return Function(sum(map(shapes, nodes), Counter()), source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def shapes(function: ast.FunctionDef) -> Counter[int]:
    """How often each expression and statement occurs in a function."""
    own = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    own |= {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    found: Counter[int] = Counter()

    def digest(value: object) -> int:
        if isinstance(value, ast.Name):
            return hash("a local variable" if value.id in own else value.id)
        if isinstance(value, list):
            statements = value and isinstance(value[0], ast.stmt)
            return hash(tuple(sorted(map(digest, value)) if statements else map(digest, value)))
        if not isinstance(value, ast.AST):
            return hash((type(value).__name__, value))
        parts = [digest(part) for name, part in ast.iter_fields(value) if name not in ("ctx", "annotation", "kind")]
        if isinstance(value, ast.BinOp) and isinstance(value.op, COMMUTATIVE):
            parts.sort()
        made = hash((type(value).__name__, *parts))
        if isinstance(value, ast.expr | ast.stmt) and not isinstance(value, ast.Constant):
            found[made] += 1
        return made

    documented = ast.get_docstring(function) is not None
    for statement in function.body[documented:]:
        digest(statement)
    return found


def similarity(one: Function, other: Function) -> float:
    """The fraction of expressions and statements that two functions share."""
    return (one.shapes & other.shapes).total() / (one.shapes | other.shapes).total()


def written(exercise: Exercise, folders: list[Path]) -> dict[str, Function]:
    """By student, and for the script, the function for an exercise."""
    drawn = exercise.script == "variants"
    model = {exercise.function: exercise.source} if drawn else functions(exercise.script)
    found = {SCRIPT: find_function("\n\n".join(model.values()), exercise.function, model)}
    for folder in folders:
        try:
            text = read(folder / f"{exercise.script}.py")
        except Unusable:
            continue
        if len(text.encode()) <= LONGEST:
            found[folder.name] = find_function(text, exercise.function, model)
    return {name: function for name, function in found.items() if function}


def compare(exercise: Exercise, made: dict[str, Function], least: int) -> list[Pair]:
    """The pairs of functions for an exercise; in pairs with the script, the script comes second."""
    model = made[SCRIPT]
    made = {name: function for name, function in made.items() if name != SCRIPT and function.shapes.total() >= least}
    known = {name: similarity(function, model) for name, function in made.items()}
    pairs = [Pair(known[name], function, model, exercise, (name, SCRIPT)) for name, function in made.items()]
    for (name, one), (other, another) in combinations(made.items(), 2):
        alike = similarity(one, another)
        if alike > min(known[name], known[other]):
            pairs.append(Pair(alike, one, another, exercise, (name, other)))
    return pairs


def summary(pairs: list[Pair], top: int) -> tuple[list[Pair], str]:
    """The most similar pairs, with longer functions first among equal ones, and the number of equal ones left out."""
    ranked = sorted(pairs, key=lambda pair: (-pair.similarity, -pair.one.shapes.total()))
    listed, others = ranked[:top], ranked[top:]
    equal = sum(pair.similarity == listed[-1].similarity for pair in others)
    return listed, f"{equal} more of similarity {listed[-1].similarity:.2f}" if equal else ""


def side_by_side(pair: Pair) -> str:
    """Both functions as Markdown, indented so that a student's text is always code."""
    parts = [f"## {pair}"]
    for name, function in zip(pair.names, (pair.one, pair.other), strict=True):
        parts += [f"{printable(name)}:", textwrap.indent(printable(function.source, keep="\n"), "    ")]
    return "\n\n".join(parts)


def main(args: Args) -> None:
    args = validated(Args, vars(args))
    check_key(args.key)
    folders = subfolders(args.submissions)
    if args.out and not args.out.absolute().parent.is_dir():
        fail(f"{args.out.parent} is not a folder: create it, or write {args.out.name} elsewhere.")
    asked = EXERCISES if args.key is None else variants(args.key)
    for script in dict.fromkeys(exercise.script for exercise in asked):
        for folder in folders:
            if (path := folder / f"{script}.py").is_file() and path.stat().st_size > LONGEST:
                say(f"{folder.name}: {path.name} is not compared, because it is longer than {LONGEST >> 10} KiB.")
    pairs = [pair for exercise in asked for pair in compare(exercise, written(exercise, folders), args.least)]
    parts = []
    for title, with_script in (("Submissions", False), ("Submissions and the model solutions", True)):
        listed, rest = summary([pair for pair in pairs if (SCRIPT in pair.names) == with_script], args.top)
        lines = [*map(str, listed), *filter(None, [rest])] or ["none"]
        say("\n  ".join([f"{title}: look at these side by side", *lines]), keep="\n")
        parts += [f"# {title}", f"A high similarity proves nothing. {rest}".strip(), *map(side_by_side, listed)]
    if args.out:
        write_whole(args.out, "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
