"""The program of a worker process: `worker.py FUNCTION SECONDS` computes rewards with one function.

FUNCTION is `file.py:name` or `package.module:name`; what it prints goes to stderr. The first reply says whether it was
loaded. Then each JSON line is answered: a list of responses with their rewards, null with whether it takes batches.
SECONDS > 0 limits the processor time of an answer. Then a child process does the work: a late answer ends only the
child, and the next child needs no imports.
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
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any


def load(name: str) -> Callable[..., Any]:
    """The named function. Any exception says why there is none."""
    source, _, function = name.rpartition(":")
    if not source.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        return getattr(importlib.import_module(source), function)
    path = Path(source)
    if path.parent != Path(__file__).parent:
        sys.path[:0] = [str(path.parent), os.getcwd()]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def reason(error: BaseException) -> str:
    """An exception in one line, with the last line of the user's files that it passed through."""
    places = [p for p in traceback.extract_tb(error.__traceback__) if p.filename != __file__ and "<" not in p.filename]
    lines = str(error).strip().splitlines() or ["no reason given"]
    where = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
    return f"{type(error).__name__}: {lines[0]}{where}"


def answer(rows: list[list[Any]] | None) -> list[float] | bool:
    """The rewards of some responses; a row is problem, text, tokens, truncated."""
    if rows is None:
        return batched
    rows = [[SimpleNamespace(**problem), *rest] for problem, *rest in rows]
    values = list(function(*map(list, zip(*rows, strict=True)))) if batched else [function(*row) for row in rows]
    if len(values) != len(rows):
        raise ValueError(f"it gave {len(values)} rewards for {len(rows)} responses")
    for value in values:
        if isinstance(value, str):
            raise TypeError(f"a reward must be a number, not {value!r}")
    return list(map(float, values))


def reply(**fields: Any) -> None:
    print(json.dumps(fields), file=replies, flush=True)


def serve(lines: Iterable[bytes]) -> None:
    for line in lines:
        # Processor time, so that no verdict depends on the machine's load. Nothing handles the signal: it kills.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            fields = {"value": answer(json.loads(line))}
        except BaseException as error:
            fields = {"failed": reason(error)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        reply(**fields)


def serve_in_children() -> None:
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the run ends its workers itself
        signal.signal(sent, signal.SIG_IGN)
    while child := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return
        reply(failed="timeout" if status == -signal.SIGPROF else "crash")
    serve(questions)
    os._exit(0)


def receive(lines: "SimpleQueue[bytes]") -> None:
    """Queue the questions. When the run has ended, end this process and all that the function has started."""
    for line in questions:
        lines.put(line)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    questions, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    seconds = float(sys.argv[2])
    try:
        function = load(sys.argv[1])
        batched = next(iter(inspect.signature(function).parameters)) == "problems"
    except BaseException as error:
        reply(failed=reason(error))
        sys.exit()
    reply()
    if seconds > 0:
        serve_in_children()
    else:
        lines: "SimpleQueue[bytes]" = SimpleQueue()
        threading.Thread(target=receive, args=(lines,), daemon=True).start()
        serve(iter(lines.get, None))
