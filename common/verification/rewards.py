"""Reward functions: `--reward file.py:function` or `package.module:function`, several with weights.

    def function(problem, text, tokens, truncated) -> float        # one response
    def function(problems, texts, tokens, truncated) -> list[float]    # several, if the first parameter is `problems`

Functions run in worker processes. One that hangs is killed, and the run continues. An exception, or a value that is not
a finite number, ends the run with one sentence. docs/rewards.md has examples.
"""

import math
import re
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from common.cli import fail, say
from common.distributed import gather
from common.records import Problem, Rollouts
from common.verification.workers import Pool, Program

from torch import Tensor

TIME_LIMIT = 30.0  # seconds for one call of a function
MAX_LATE = 16  # calls per rollout batch that may exceed it
# Of each response: whether it is correct, its reward, and what each reward function gave.
Judged = tuple[list[bool], list[float], list[dict[str, float | None]]]
CORRECT = "correct"  # the built-in reward: 1 if the verifier finds the answer correct


def split_weight(text: str) -> tuple[str, float]:
    """A reward and its weight, by default 1: `a.py:f=0.2`."""
    match = re.fullmatch(rf"({CORRECT}|.+:\w+)(?:=([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))?", text, re.DOTALL)
    if match is None or not math.isfinite(float(match[2] or 1)):
        fail(f"--reward {text} must be {CORRECT}, file.py:function or package.module:function, perhaps with =WEIGHT.")
    return match[1], float(match[2] or 1)


def short(name: str) -> str:
    """The name of a reward in logs: that of its function."""
    return name.rpartition(":")[2]


class Rewards:
    """The functions that `--reward` names, and their weights."""

    def __init__(self, names: tuple[str, ...], pool: Pool, failures: Counter[str]) -> None:
        self.pool, self.failures = pool, failures  # rewards that took too long count as "late"
        self.weights = dict(map(split_weight, names))
        if len(self.weights) < len(names):
            fail("--reward names a function twice: name it once, with the sum of the weights.")
        if len(set(map(short, self.weights))) < len(names):
            fail("--reward has two functions of the same name in different files: rename one of them.")
        for name in self.weights:
            file = name.rpartition(":")[0]
            if file.endswith(".py") and not Path(file).is_file():
                fail(f"--reward {name}: no such file.")
        self.needs_verdicts = CORRECT in self.weights
        self.programs = {name: Program(name, TIME_LIMIT) for name in self.weights if name != CORRECT}
        self.batched: dict[str, bool] = {}
        self.values: dict[str, list[float | None]] = {name: [] for name in self.weights}  # since take_numbers
        for name, program in self.programs.items():
            reply = next(pool.map([(program, None)]))
            if reply.failed:
                fail(f"--reward {name} {reply.failed}.")
            self.batched[name] = reply.value

    def __call__(
        self, problems: list[Problem], texts: list[str], rollouts: Rollouts, correct: list[bool] | None
    ) -> Judged:
        """Which of B responses are correct, their rewards, and what each function gave.

        `correct` holds the verifier's verdicts. Without them a response is correct if each function gives at least 1.
        """
        rows = []
        for problem, *response in zip(problems, texts, rollouts.tokens, rollouts.truncated, strict=True):
            answer = problem.answer if isinstance(problem.answer, str | tuple) else str(problem.answer)
            given = {"question": problem.question, "answer": answer, "prompt": problem.prompt, "row": problem.row}
            rows.append([given, *response])
        values = {name: self.compute(name, rows) for name in self.programs}
        if correct is None:
            correct = [all((value[i] or 0) >= 1 for value in values.values()) for i in range(len(rows))]
        else:
            values[CORRECT] = list(map(float, correct))
        for name in self.weights:
            self.values[name] += values[name]
        of_each = [{short(name): values[name][i] for name in self.weights} for i in range(len(rows))]
        values = {name: [value or 0.0 for value in values[name]] for name in self.weights}
        rewards = [sum(w * values[name][i] for name, w in self.weights.items()) for i in range(len(rows))]
        return correct, rewards, of_each

    def take_numbers(self) -> dict[str, float]:
        """Of each function since the last call: mean, standard deviation, and the fraction of values that came in time.

        A late value is not part of mean and deviation; in the reward it is 0.
        """
        numbers = {}
        for name in self.weights:
            values = [value for part in gather(self.values[name]) for value in part]
            counted, logged = [value for value in values if value is not None], f"reward/{short(name)}"
            numbers[logged] = statistics.fmean(counted) if counted else None
            numbers[f"{logged}/std"] = statistics.pstdev(counted) if counted else None
            numbers[f"{logged}/in_time"] = len(counted) / len(values) if values else None
            self.values[name].clear()
        return numbers

    def compute(self, name: str, rows: list[list[Any]]) -> list[float | None]:
        """What one function gives for each response; None if it took too long."""
        parts = ([rows] if rows else []) if self.batched[name] else [[row] for row in rows]
        values, num_late = [], 0
        for part, reply in zip(parts, self.pool.map((self.programs[name], part) for part in parts), strict=True):
            rewards, shown = reply.value, repr(part[0][1][:80])
            if reply.late and num_late < MAX_LATE:
                if not self.failures["late"]:
                    say(f"warning: --reward {name}: {reply.failed} for {shown}; its reward is 0.")
                num_late += 1
                self.failures["late"] += len(part)
                rewards = [None] * len(part)
            elif reply.failed:
                fail(f"--reward {name} failed for {shown}: {reply.failed}.", code=1)
            for row, value in zip(part, rewards, strict=True):
                if value is not None and not math.isfinite(value):
                    fail(f"--reward {name} gave {value} for {row[1][:80]!r}: rewards must be finite.", code=1)
            values += rewards
        return values


def require_binary(rewards: Tensor, why: str) -> None:
    """End the program if a reward is neither 0 nor 1; `why` says why the method needs that."""
    others = rewards[(rewards != 0) & (rewards != 1)]
    if len(others):
        advice = "use rewards of 0 and 1, or a method that takes any reward, such as grpo.py."
        fail(f"a reward of {others[0].item():g}, but {why}: {advice}", code=1)
