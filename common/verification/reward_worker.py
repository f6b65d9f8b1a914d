"""The program of the workers that run a user's reward function or a data set's scorer.

Its argument names the function, `file.py:name` or `package.module:name`. It first replies whether the function takes
batches, then reads responses and replies with their rewards. What the function prints goes to stderr.
"""

import importlib
import importlib.util
import inspect
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any


def load(name: str) -> Callable[..., Any]:
    """The named function. If there is none, any exception may say why."""
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
    """An exception in one line, with the last line of the user's files that it passed through."""
    places = [p for p in traceback.extract_tb(error.__traceback__) if p.filename != __file__ and "<" not in p.filename]
    lines = str(error).strip().splitlines() or ["no reason given"]
    where = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
    return f"{type(error).__name__}: {lines[0]}{where}"


def number(value: Any) -> float:
    if isinstance(value, str):
        raise TypeError(f"a reward must be a number, not {value!r}")
    return float(value)


def call(function: Callable[..., Any], batched: bool, rows: list[list[Any]]) -> list[float]:
    """The rewards of some responses; a row is problem, text, tokens, truncated."""
    rows = [[SimpleNamespace(**problem), *rest] for problem, *rest in rows]
    if not batched:
        return [number(function(*row)) for row in rows]
    values = [number(value) for value in function(*map(list, zip(*rows, strict=True)))]
    if len(values) != len(rows):
        raise ValueError(f"it gave {len(values)} rewards for {len(rows)} responses")
    return values


def read(lines: "SimpleQueue[bytes]") -> None:
    """Queue the questions. When the run ends, end this process and all that the function has started."""
    for line in questions:
        lines.put(line)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    questions, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def reply(**fields: Any) -> None:
        print(json.dumps(fields), file=replies, flush=True)

    try:
        function = load(sys.argv[1])
        batched = next(iter(inspect.signature(function).parameters)) == "problems"
    except BaseException as error:
        reply(failed=reason(error))
        sys.exit()
    reply(value=batched)
    lines: "SimpleQueue[bytes]" = SimpleQueue()
    threading.Thread(target=read, args=(lines,), daemon=True).start()
    while True:
        try:
            reply(value=call(function, batched, json.loads(lines.get())))
        except BaseException as error:
            reply(failed=reason(error))
