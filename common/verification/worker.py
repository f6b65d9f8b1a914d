"""The program of a worker process: `worker.py FUNCTION SECONDS PROCESSOR_SECONDS` computes rewards with one function.

FUNCTION is `file.py:name` or `package.module:name`; what it prints goes to stderr. The first reply says whether it was
loaded. Each further JSON line gets a reply: a list of responses, their rewards; null, whether a call may have several
responses, and whether it needs the whole batch. PROCESSOR_SECONDS > 0 limits the processor time of an answer; a child
process then does the work: a late answer ends only the child, and the next child needs no imports.
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
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any


def load(name: str) -> Callable[..., Any]:
    """The named function. An exception says why it cannot be loaded."""
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
    places = [place for place in traceback.extract_tb(error.__traceback__) if "<" not in place.filename]
    places = [place for place in places if Path(place.filename).parent != Path(__file__).parent]
    lines = str(error).strip().splitlines() or ["no reason given"]
    where = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
    return f"{type(error).__name__}: {lines[0]}{where}"


def reward_of(value: Any) -> float | list[Any]:
    """What a function returned for a response, as a number, or as a list of a number and a text."""
    number, *text = value if isinstance(value, tuple) else (value,)
    if isinstance(number, str | tuple | list | None) or len(text) > 1 or not all(isinstance(one, str) for one in text):
        raise TypeError(f"a reward must be a number, or a number and a text, not {value!r:.80}")
    # A lone surrogate cannot be sent, or read by a tokenizer.
    return [float(number), text[0].encode(errors="replace").decode()] if text else float(number)


class Function:
    """A reward function, called as its signature asks: for one response or for several, awaited or not."""

    def __init__(self, function: Callable[..., Any], seconds: float) -> None:
        self.function, self.seconds = function, seconds
        self.is_batched = next(iter(inspect.signature(function).parameters)) == "problems"
        called = function if inspect.isroutine(function) else function.__call__
        self.is_async = inspect.iscoroutinefunction(called)

    @cached_property
    def loop(self) -> Any:
        """One event loop for all calls, so that a function can keep its connections open."""
        import asyncio  # only where it is needed: every worker waits for its imports

        return asyncio.Runner()

    def __call__(self, rows: list[list[Any]] | None) -> list[Any]:
        """The rewards of some responses, with any feedback; None if an async call took too long.

        A row is problem, text, tokens, truncated. Without rows: whether one call may have several responses, and
        whether it has to have all of a rollout batch.
        """
        if rows is None:
            return [self.is_batched or self.is_async, self.is_batched]
        rows = [[SimpleNamespace(**problem), *rest] for problem, *rest in rows]
        if self.is_async and not self.is_batched:
            return self.loop.run(self.all_at_once(rows))
        values = [self.function(*row) for row in rows] if not self.is_batched else self.of_batch(rows)
        if len(values) != len(rows):
            raise ValueError(f"it gave {len(values)} rewards for {len(rows)} responses")
        return list(map(reward_of, values))

    def of_batch(self, rows: list[list[Any]]) -> list[Any]:
        values = self.function(*map(list, zip(*rows, strict=True)))
        return list(self.loop.run(values) if self.is_async else values)

    async def all_at_once(self, rows: list[list[Any]]) -> list[Any]:
        """The rewards of some responses, computed concurrently."""
        import asyncio

        tasks = [asyncio.ensure_future(self.function(*row)) for row in rows]
        done, late = await asyncio.wait(tasks, timeout=self.seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in late:
            task.cancel()
        for row, task in enumerate(tasks):
            if task in done and (error := task.exception()):
                error.row = row
                raise error
        return [None if task in late else reward_of(task.result()) for task in tasks]


def reply(**fields: Any) -> None:
    print(json.dumps(fields), file=replies, flush=True)


def serve(lines: Iterable[bytes]) -> None:
    for line in lines:
        # Processor time, so that no verdict depends on the machine's load. Nothing handles the signal: it kills.
        signal.setitimer(signal.ITIMER_PROF, processor_seconds)
        try:
            fields = {"value": function(json.loads(line))}
        except BaseException as error:
            fields = {"failed": reason(error), "row": getattr(error, "row", 0)}
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
    """Put incoming questions in a queue. When the run ends, end this process and every process the function started."""
    for line in questions:
        lines.put(line)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    questions, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    seconds, processor_seconds = map(float, sys.argv[2:])
    try:
        function = Function(load(sys.argv[1]), seconds)
    except BaseException as error:
        reply(failed=reason(error))
        sys.exit()
    reply()
    if processor_seconds > 0:
        serve_in_children()
    else:
        lines: "SimpleQueue[bytes]" = SimpleQueue()
        threading.Thread(target=receive, args=(lines,), daemon=True).start()
        serve(iter(lines.get, None))
