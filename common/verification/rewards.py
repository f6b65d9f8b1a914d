"""Rewards of the user's own: `--reward file.py:function` or `package.module:function`, several with weights.

    def function(problem, text, tokens, truncated) -> float        # one response
    def function(problems, texts, tokens, truncated) -> list[float]    # some of a batch, where the first is `problems`

Each function runs in processes of its own that can be killed: what hangs ends there, and the run goes on. A mistake in
a function (an exception, a value that is no finite number) ends the run with a sentence; docs/rewards.md has examples.
"""

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from common.cli import fail
from common.records import Problem

from torch import Tensor

TIME_LIMIT = 30.0  # seconds for one call of a function
START_LIMIT = 300.0  # seconds for the imports of its file
MOST_LATE = 16  # calls of a rollout batch that may take too long
CORRECT = "correct"  # the built-in one: 1 where the verifier finds the answer right


def split_weight(text: str) -> tuple[str, float]:
    """A reward and its weight: `a.py:f=0.2`, where no weight is 1."""
    name, weight = re.fullmatch(r"(.*?)(?:=([-+.\deE]+))?", text, re.DOTALL).groups()
    try:
        number = 1.0 if weight is None else float(weight)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (name != CORRECT and not re.fullmatch(r".+:\w+", name)):
        fail(f"--reward {text} must be {CORRECT}, file.py:function or package.module:function, perhaps with =WEIGHT.")
    return name, number


class Worker:
    """A process that runs one function; it is started when it is first asked, and again after it was killed."""

    def __init__(self, name: str, limit: float | None = None) -> None:
        self.name, self.limit = name, limit or TIME_LIMIT
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> bool:
        """Whether the function takes batches."""
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("reward_worker.py")), self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # what the function starts is killed with it, and Ctrl-C is for the run alone
        )
        hello = self.read(START_LIMIT)
        if "failed" in hello:
            fail(f"--reward {self.name} cannot be loaded: {hello['failed']}.")
        return hello["batched"]

    def ask(self, rows: list[list[Any]]) -> dict[str, Any]:
        """The rewards of some responses, or `failed`, or `late`."""
        if self.process is None:
            self.start()
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(rows) + "\n")
            self.process.stdin.flush()
        return self.read(self.limit)

    def read(self, limit: float) -> dict[str, Any]:
        """The next reply; a process that takes longer than the limit is killed."""
        late = threading.Event()
        timer = threading.Timer(limit, lambda: (late.set(), self.kill()))
        timer.start()
        reply = self.process.stdout.readline()
        timer.cancel()
        timer.join()  # a timer that has begun to kill the process needs it to the end
        if reply and not late.is_set():
            return json.loads(reply)
        self.close()
        return {"failed": f"no answer within {limit:.0f} seconds" if late.is_set() else "its process has ended"} | (
            {"late": True} if late.is_set() else {}
        )

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        if self.process is not None:
            self.kill()
            self.process.communicate()
            self.process = None


class Rewards:
    """The weighted sum of the rewards that `--reward` names, and what counts as right where no verifier judges."""

    def __init__(self, names: tuple[str, ...], workers: int = 2) -> None:
        self.weights = dict(map(split_weight, names))
        if len(self.weights) < len(names):
            fail("--reward names a function twice: once, with the sum of the weights, is the same.")
        for name in self.weights:
            file = name.rpartition(":")[0]
            if file.endswith(".py") and not Path(file).is_file():
                fail(f"--reward {name}: no such file.")
        self.workers = {name: [Worker(name) for _ in range(workers)] for name in self.weights if name != CORRECT}
        self.batched = {name: mine[0].start() for name, mine in self.workers.items()}
        self.threads = ThreadPoolExecutor(workers)
        self.late = 0  # responses whose reward took too long

    @property
    def asks_verifier(self) -> bool:
        return CORRECT in self.weights

    def __call__(
        self,
        problems: list[Problem],
        texts: list[str],
        tokens: list[list[int]],
        truncated: list[bool],
        right: list[bool] | None,
    ) -> tuple[list[bool], list[float]]:
        """Of B responses: which are right, and their rewards.

        Right is what the verifier finds right or, where `correct` is not among the rewards, what has at least 1 from
        each function.
        """
        answers = [p.answer if isinstance(p.answer, str | tuple) else str(p.answer) for p in problems]
        given = [
            {"question": p.question, "answer": answer, "prompt": p.prompt}
            for p, answer in zip(problems, answers, strict=True)
        ]
        rows = [list(row) for row in zip(given, texts, tokens, truncated, strict=True)]
        values = {name: self.values(name, rows) for name in self.workers}
        if right is None:
            right = [all(mine[i] >= 1 for mine in values.values()) for i in range(len(rows))]
        else:
            values[CORRECT] = [float(r) for r in right]
        sums = [sum(w * values[name][i] for name, w in self.weights.items()) for i in range(len(rows))]
        return right, sums

    def values(self, name: str, rows: list[list[Any]]) -> list[float]:
        """What one function gives for each response; 0 where it took too long, which is counted."""
        idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers[name]:
            idle.put(worker)

        def ask(part: list[list[Any]]) -> dict[str, Any]:
            worker = idle.get()
            try:
                return worker.ask(part)
            finally:
                idle.put(worker)

        parts = ([rows] if rows else []) if self.batched[name] else [[row] for row in rows]
        values, late = [], 0
        for part, reply in zip(parts, self.threads.map(ask, parts), strict=True):
            shown = repr(part[0][1][:80])
            if "late" in reply and late < MOST_LATE:
                if not self.late:
                    print(f"note: --reward {name}: {reply['failed']} for {shown}; what is late counts 0.", flush=True)
                late += 1
                self.late += len(part)
                reply = {"rewards": [0.0] * len(part)}
            if "failed" in reply:
                fail(f"--reward {name} failed for {shown}: {reply['failed']}.", code=1)
            for row, value in zip(part, reply["rewards"], strict=True):
                if not math.isfinite(value):
                    fail(f"--reward {name} gave {value} for {row[1][:80]!r}: rewards must be finite.", code=1)
            values += reply["rewards"]
        return values

    def take_late(self) -> int:
        """How many rewards took too long since the last call."""
        count, self.late = self.late, 0
        return count

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
        for workers in self.workers.values():
            for worker in workers:
                worker.close()


def require_binary(rewards: Tensor, why: str) -> None:
    """End the program where a reward is neither 0 nor 1, and say why the method needs that."""
    odd = rewards[(rewards != 0) & (rewards != 1)]
    if len(odd):
        fail(f"a reward of {odd[0].item():g}, but {why}: give 0 or 1, or take a method for any reward, as grpo.py.", 1)
