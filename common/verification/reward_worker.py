"""The process that runs a reward function of the user's: reads calls as JSON lines, writes what came of each.

It is told the function, `file.py:name` or `package.module:name`, and says first whether that could be found and whether
it takes batches. What the function prints goes to the terminal's error output.
"""

import importlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def load(name: str) -> Callable[..., Any]:
    """The function that is named; any exception says why there is none."""
    source, _, function = name.rpartition(":")
    if not source.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        return getattr(importlib.import_module(source), function)
    path = Path(source)
    sys.path[:0] = [str(path.parent), os.getcwd()]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return getattr(module, function)


def reason(error: BaseException) -> str:
    """An exception in one line, with the last place in the user's own files that it came through."""
    places = [p for p in traceback.extract_tb(error.__traceback__) if p.filename != __file__ and "<" not in p.filename]
    lines = str(error).strip().splitlines() or ["no reason given"]
    where = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
    return f"{type(error).__name__}: {lines[0]}{where}"


def number(value: Any) -> float:
    if isinstance(value, str):
        raise TypeError(f"a reward must be a number, not {value!r}")
    return float(value)


def call(function: Callable[..., Any], batched: bool, rows: list[list[Any]]) -> list[float]:
    """The rewards of some responses: each row is problem, text, tokens, truncated."""
    rows = [[SimpleNamespace(**problem), *rest] for problem, *rest in rows]
    if not batched:
        return [number(function(*row)) for row in rows]
    values = [number(value) for value in function(*map(list, zip(*rows, strict=True)))]
    if len(values) != len(rows):
        raise ValueError(f"it gave {len(values)} rewards for {len(rows)} responses")
    return values


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(**what: Any) -> None:
        print(json.dumps(what), file=replies, flush=True)

    try:
        function = load(sys.argv[1])
        batched = next(iter(inspect.signature(function).parameters)) == "problems"
    except BaseException as error:
        reply(failed=reason(error))
        sys.exit()
    reply(batched=batched)
    for line in sys.stdin:
        try:
            reply(rewards=call(function, batched, json.loads(line)))
        except BaseException as error:
            reply(failed=reason(error))
