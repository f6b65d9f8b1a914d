"""Worker processes that answer questions, one JSON line each, and are killed when an answer takes too long."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from queue import LifoQueue
from typing import Any, NamedTuple

from common.verification.worker import Function, reason

START_LIMIT = 300.0  # seconds for the imports of a program
GRACE = 1.0  # extra seconds for a worker to report late responses itself


class Program(NamedTuple):
    """What a worker runs, see worker.py. The limits are seconds of wall time and processor time for one answer."""

    function: str | Callable[..., Any]
    time_limit: float
    processor_limit: float = 0.0


class Reply(NamedTuple):
    """A value or, if there is none, the reason; `late` if the worker was killed at its time limit.

    `row` is the response on which it failed.
    """

    value: Any = None
    failed: str = ""
    late: bool = False
    row: int = 0


class Worker:
    """One process, started by its first question. Only one thread at a time may ask it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        self.closed = False
        self.lock = threading.Lock()  # `close` is called while another thread starts the process or waits for it

    def start(self) -> Reply:
        limits = map(str, self.program[1:])
        with self.lock:
            if self.closed:
                return Reply(failed="the run is ending")
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).with_name("worker.py")), self.program.function, *limits],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # to kill what it starts too, and to keep the terminal's Ctrl-C from it
            )
        reply = self.read(START_LIMIT)
        return Reply(failed=f"cannot be loaded: {reply.failed}") if reply.failed else reply

    def ask(self, question: Any) -> Reply:
        if self.process is None and (reply := self.start()).failed:
            return reply
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
        return self.read(self.program.time_limit)

    def read(self, limit: float) -> Reply:
        """The next reply. Without one within `limit` seconds, the process is killed."""
        pipe, line, deadline = self.process.stdout.fileno(), b"", time.monotonic() + limit + GRACE
        while wait([pipe], max(0.0, deadline - time.monotonic())):
            received = os.read(pipe, 1 << 20)
            line += received
            if line.endswith(b"\n"):
                return Reply(**json.loads(line))
            if not received:
                self.end()
                return Reply(failed="its process has ended")
        self.end()
        return Reply(failed=f"no answer within {limit:.0f} seconds", late=True)

    def kill(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):  # it has ended already
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and everything it has started. The next question starts a new one."""
        with self.lock:
            self.kill()
            if self.process is not None:
                self.process.communicate()
                self.process = None

    def close(self) -> None:
        """End the process for good. A thread that waits for a reply gets one at once, and cleans up."""
        with self.lock:
            self.closed = True
            self.kill()


class InProcess:
    """Replaces a worker if the function is a Python object. Only an async one has a time limit."""

    def __init__(self, program: Program) -> None:
        self.function = Function(program.function, program.time_limit)

    def ask(self, question: Any) -> Reply:
        try:
            return Reply(self.function(question))
        except Exception as error:
            return Reply(failed=reason(error), row=getattr(error, "row", 0))

    def close(self) -> None:
        """Nothing can interrupt a call."""

    def end(self) -> None:
        if "loop" in vars(self.function):
            self.function.loop.close()


class Pool:
    """`size` workers for each program, or one in this process. A question goes to an idle one."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.threads = ThreadPoolExecutor(size)
        self.workers: list[Worker | InProcess] = []
        self.idle: dict[Program, LifoQueue[Worker | InProcess]] = {}  # the last one used comes first: it still runs

    def ask(self, program: Program, question: Any) -> Reply:
        worker = self.idle[program].get()
        try:
            return worker.ask(question)
        finally:
            self.idle[program].put(worker)

    def map(self, questions: Iterable[tuple[Program, Any]]) -> Iterator[Reply]:
        """The replies to questions, in their order."""
        questions = list(questions)
        for program in {program for program, _ in questions} - self.idle.keys():
            self.idle[program] = LifoQueue()
            in_process = callable(program.function)
            for _ in range(1 if in_process else self.size):
                self.workers.append(InProcess(program) if in_process else Worker(program))
                self.idle[program].put(self.workers[-1])
        return self.threads.map(lambda question: self.ask(*question), questions)

    def close(self) -> None:
        """End all workers, even those that are computing an answer."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.close()
        self.threads.shutdown()
        for worker in self.workers:
            worker.end()
