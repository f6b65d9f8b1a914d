"""The scripts of this repository, found by their docstrings, which say what each one differs from.

Eleven are at the top level, further methods in `methods/`, published recipes in `recipes/`.
"""

import ast
import importlib
import inspect
import re
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from common.cli import fail

ROOT = Path(__file__).parent.parent
PARSER = threading.Lock()
FOLDERS = (ROOT, ROOT / "methods", ROOT / "recipes")


def parse(text: str) -> ast.Module:
    """The syntax tree of a Python file, for several threads too: ast.parse is not safe there before Python 3.12."""
    with PARSER:
        return ast.parse(text)


def docstring(path: Path) -> str:
    return ast.get_docstring(parse(path.read_text())) or ""


@cache
def parents() -> dict[str, str | None]:
    """The parent of every script by name, None for the root; a parent comes before its children."""
    found = {}
    for folder in FOLDERS:
        for path in sorted(folder.glob("*.py")):
            if match := re.search(r"Differs from its parent (\w+)\.py", docstring(path)):
                found[path.stem] = match[1]
    ordered: dict[str, str | None] = {}
    waiting = [(root, None) for root in sorted(set(found.values()) - set(found))]
    while waiting:
        name, above = waiting.pop(0)
        ordered[name] = above
        waiting += [(child, name) for child in found if found[child] == name]
    return ordered


def script_path(name: str) -> Path:
    """The file of a script, given by its name, with or without folder and `.py`."""
    stem = Path(name).stem
    if stem not in parents():
        fail(f"{name} is not a script: name one of {', '.join(parents())}.")
    return next(folder / f"{stem}.py" for folder in FOLDERS if (folder / f"{stem}.py").exists())


def module_name(path: Path) -> str:
    """The dotted name of a script's module: grpo, methods.sapo."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def load(name: str) -> ModuleType:
    """A script as a module."""
    return importlib.import_module(module_name(script_path(name)))


def call(function: Callable[..., Any], **values: Any) -> Any:
    """Call a function of a script with those of these values that it takes, as the scripts' parameters differ."""
    return function(**{name: values[name] for name in inspect.signature(function).parameters if name in values})


def components(name: str) -> dict[str, str]:
    """The components of a recipe, each with the flags that remove it, from the table in its docstring."""
    return dict(re.findall(r"^\| (.+?) \| .+? \| (--.+) \|$", docstring(script_path(name)), re.M))


def command(path: Path) -> list[str]:
    """What follows `python` to run a script from the repository's root."""
    name = module_name(path)
    return ["-m", name] if "." in name else [f"{name}.py"]
