"""The command line of a script: tyro reads it, and `--help` shows the flags in groups, the method's own first."""

import ast
import inspect
import os
import re
import shutil
import sys
import textwrap
import types
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import tyro

A = TypeVar("A")
GROUPS = ("Training", "Data and rewards", "Model and engine", "Evaluation and logging")  # after the script's own group


def parse_args(kind: type[A], description: str | None) -> A:
    """The settings on the command line, an instance of the dataclass `kind`."""
    if {"--help", "-h"} & set(sys.argv[1:]):
        try:
            print(help_text(kind, description or ""), flush=True)
        except BrokenPipeError:  # `--help | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python writes on exit
        raise SystemExit(0)
    return tyro.cli(kind, description=description)


def help_text(kind: type, description: str) -> str:
    """The description and, group by group, each flag with its values, help and default."""
    owners = [c for c in reversed(kind.__mro__) if inspect.get_annotations(c)]  # the base first
    help_of, type_of = {}, {}
    for owner in owners:
        help_of |= field_docs(owner)
        type_of |= inspect.get_annotations(owner)
    groups: dict[str, list[Field]] = {}
    for field in fields(kind):
        first = next(owner for owner in owners if field.name in inspect.get_annotations(owner))
        groups.setdefault(group_title(first), []).append(field)
    width = max(60, shutil.get_terminal_size((110, 50)).columns)
    lines = [inspect.cleandoc(description)]
    for title in sorted(groups, key=lambda title: GROUPS.index(title) if title in GROUPS else -1):
        lines.append(f"\n{title}")
        for field in groups[title]:
            lines.append(f"  {flags(field.name, metavar(type_of[field.name]))}")
            default = "" if shown(field) == "none" else f" Default: {shown(field)}"
            text, indent = f"{help_of.get(field.name, '')}{default}".strip(), " " * 6
            lines += textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines)


@cache  # finding the source of a class takes time
def group_title(owner: type) -> str:
    """GROUP of a class of settings; for a script's own, the comment above its first setting, the method's name."""
    comment = re.search(r"^    # (.+)$", inspect.getsource(owner), re.M)
    return owner.__dict__.get("GROUP") or (comment[1] if comment else "Settings")


def field_docs(owner: type) -> dict[str, str]:
    """The string under each field of a class, in one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0].body
    return {
        node.target.id: " ".join(str(below.value.value).split())
        for node, below in pairwise(body)
        if isinstance(node, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }


def flags(name: str, values: str) -> str:
    name = name.replace("_", "-")
    return f"--{name}, --no-{name}" if values == "BOOL" else f"--{name} {values}"


def metavar(annotation: Any) -> str:
    """The values of a setting: a type, or the choices."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return metavar(parts[0])
    if origin is Literal:
        return "{" + ",".join(map(str, parts)) + "}"
    if origin in (Union, types.UnionType):
        return "|".join(filter(None, dict.fromkeys(map(metavar, parts))))
    if origin is tuple:
        return f"[{metavar(parts[0])} ...]"
    if annotation is types.NoneType or origin is Callable:  # not from the command line
        return ""
    return {int: "INT", float: "FLOAT", str: "TEXT", bool: "BOOL"}.get(annotation, "PATH")


def shown(field: Field) -> str:
    """The default as it is typed on the command line."""
    value = None if field.default is MISSING else field.default
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else repr(value) if not str(value).strip() or "\n" in str(value) else str(value)
