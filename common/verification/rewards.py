"""Reward functions: `--reward file.py:function` or `package.module:function`, several with weights.

    def function(problem, text, tokens, truncated) -> float        # one response
    def function(problems, texts, tokens, truncated) -> list[float]    # several, if the first parameter is `problems`

In place of a float it may return (float, text): the text is feedback on the response, for methods that use it.
Either may be `async def`. Functions run in worker processes. One that hangs is killed, and the run continues. Python
objects, as in `Args(reward=[function])`, run in this process, where nothing can end them. An exception, or a value that
is not a finite number, ends the run with one sentence. docs/rewards.md has examples.
"""

import math
import re
import statistics
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

from common.cli import fail, say
from common.distributed import gather, rank
from common.records import Problem, Rollouts
from common.settings import DataSettings, Reward
from common.verification.workers import Pool, Program

from torch import Tensor

MAX_LATE = 16  # responses per rollout batch whose reward may be too late
# For each response: whether it is correct, its reward, what each reward function gave, and their feedback.
Judged = tuple[list[bool], list[float], list[dict[str, float | None]], list[str]]
Given = float | list[Any] | None  # by one function to one response: a number, or a number and a text; None if too late
CORRECT = "correct"  # the built-in reward: 1 if the verifier finds the answer correct
OBJECT = "python"  # in place of the module, in the name of a Python object
MADE_UP = "This response is made up. \\boxed{0}"


def name_of(reward: Reward) -> str:
    """How settings and messages name a reward: a text as it is, a Python object by its own name."""
    if isinstance(reward, str):
        return reward
    own = getattr(reward, "__name__", type(reward).__name__)
    return f"{OBJECT}:{''.join(c for c in own if c.isalnum() or c == '_')}"


def split_weight(text: str) -> tuple[str, float]:
    """A reward and its weight, by default 1: `a.py:f=0.2`."""
    match = re.fullmatch(rf"({CORRECT}|.+:\w+)(?:=([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))?", text, re.DOTALL)
    if match is None or not math.isfinite(float(match[2] or 1)):
        fail(f"--reward {text} must be {CORRECT}, file.py:function or package.module:function, perhaps with =WEIGHT.")
    return match[1], float(match[2] or 1)


def short(name: str) -> str:
    """The name of a reward in logs: that of its function."""
    return name.rpartition(":")[2]


def number(given: Given) -> float | None:
    return given[0] if isinstance(given, list) else given


def text(given: Given) -> str:
    return given[1] if isinstance(given, list) else ""


def summary(name: str, values: list[float | None]) -> dict[str, float | None]:
    """Mean and standard deviation of one function's values, and the fraction that came in time."""
    counted = [value for value in values if value is not None]
    return {
        f"reward/{name}": statistics.fmean(counted) if counted else None,
        f"reward/{name}/std": statistics.pstdev(counted) if counted else None,
        f"reward/{name}/in_time": len(counted) / len(values) if values else None,
    }


class Rewards:
    """The functions that `--reward` names, and their weights."""

    def __init__(self, args: DataSettings, pool: Pool, failures: Counter[str]) -> None:
        self.pool, self.failures = pool, failures  # rewards that took too long count as "late"
        names = list(map(name_of, args.reward))
        self.weights = dict(map(split_weight, names))
        if len(self.weights) < len(names):
            fail("--reward names a function twice: name it once, with the sum of the weights.")
        if len(set(map(short, self.weights))) < len(names):
            fail("--reward has two functions of the same name in different files: rename one of them.")
        self.needs_verdicts = CORRECT in self.weights
        self.programs: dict[str, Program] = {}
        # Whether one call may have several responses, and whether it has to have all of a rollout batch.
        self.batched: dict[str, list[bool]] = {}
        self.values: dict[str, list[float | None]] = {name: [] for name in self.weights}  # since take_numbers
        for name, reward in zip(self.weights, args.reward, strict=True):
            file = name.rpartition(":")[0]
            if file.endswith(".py") and not Path(file).is_file():
                fail(f"--reward {name}: no such file.")
            if file == OBJECT and isinstance(reward, str):
                fail(f"--reward {name} was a Python object: resume from Python, with the function in reward=[].")
            if name != CORRECT:
                program = Program(name if isinstance(reward, str) else reward, args.reward_timeout)
                reply = next(pool.map([(program, None)]))
                if reply.failed:
                    fail(f"--reward {name} {reply.failed}.")
                self.programs[name], self.batched[name] = program, reply.value

    def __call__(
        self, problems: list[Problem], texts: list[str], rollouts: Rollouts, correct: list[bool] | None
    ) -> Judged:
        """Which of B responses are correct, their rewards, what each function gave, and their feedback.

        `correct` holds the verifier's verdicts. Without them a response is correct if each function gives at least 1.
        """
        responses = zip(problems, texts, rollouts.tokens, rollouts.truncated, strict=True)
        rows = [[as_given(problem), *response] for problem, *response in responses]
        given = {name: self.compute(name, rows) for name in self.programs}
        feedback = ["\n".join(filter(None, map(text, row))) for row in zip(*given.values(), strict=True)]
        values = {name: list(map(number, of_name)) for name, of_name in given.items()}
        if correct is None:
            correct = [all((value[i] or 0) >= 1 for value in values.values()) for i in range(len(rows))]
        else:
            values[CORRECT] = list(map(float, correct))
        for name in self.weights:
            self.values[name] += values[name]
        of_each = [{short(name): values[name][i] for name in self.weights} for i in range(len(rows))]
        rewards = [sum(w * (values[name][i] or 0.0) for name, w in self.weights.items()) for i in range(len(rows))]
        return correct, rewards, of_each, feedback

    def take_numbers(self) -> dict[str, float]:
        """Per function, since the last call: mean, standard deviation, and the fraction of values that came in time.

        Late values are left out of mean and deviation; in the reward they are 0.
        """
        numbers = {}
        for name in self.weights:
            numbers |= summary(short(name), [value for part in gather(self.values[name]) for value in part])
            self.values[name].clear()
        return numbers

    def compute(self, name: str, rows: list[list[Any]]) -> list[Given]:
        """What one function returns for each response of this process; None if it took too long.

        A batch function may compare responses, so the first process calls it with those of all processes.
        """
        if not self.batched[name][1]:
            return self.call(name, rows)
        parts = gather(rows)
        values = gather(self.call(name, list(chain(*parts))) if rank() == 0 else [])[0]
        first = sum(map(len, parts[: rank()]))
        return values[first : first + len(rows)]

    def call(self, name: str, rows: list[list[Any]]) -> list[Given]:
        """What one function returns for each of some responses; None if it took too long."""
        parts = ([rows] if rows else []) if self.batched[name][0] else [[row] for row in rows]
        values = []
        for part, reply in zip(parts, self.pool.map((self.programs[name], part) for part in parts), strict=True):
            if reply.failed and not reply.late:
                fail(f"--reward {name} failed for {part[reply.row][1][:80]!r}: {reply.failed}.", code=1)
            given = [None] * len(part) if reply.late else reply.value
            self.count_late(name, part, given, values.count(None))
            for row, value in zip(part, map(number, given), strict=True):
                if value is not None and not math.isfinite(value):
                    fail(f"--reward {name} gave {value} for {row[1][:80]!r}: rewards must be finite.", code=1)
            values += given
        return values

    def count_late(self, name: str, rows: list[list[Any]], rewards: list[Given], before: int) -> None:
        """Count late rewards, warn about the first ones, and end the run if there are too many in a rollout batch."""
        if not (late := rewards.count(None)):
            return
        what = f"no answer within {self.programs[name].time_limit:g} seconds for {rows[rewards.index(None)][1][:80]!r}"
        what += f" and {late - 1} others" if late > 1 else ""
        if before + late > MAX_LATE:
            total = f"{before + late} responses of a rollout batch are too late"
            fail(f"--reward {name}: {what}; {total}. Raise --reward-timeout or --reward-workers.", code=1)
        if not self.failures["late"]:
            say(f"warning: --reward {name}: {what}; a late reward is 0.")
        self.failures["late"] += late


def rehearse_rewards(args: DataSettings, dataset: str, part: str) -> None:
    """End the program if a reward function fails for a made-up response to the first problem of a data set.

    A run does this before it loads the model, which may take a while.
    """
    from common.rows import pairs_of  # imports this package itself

    if all(reward == CORRECT for reward in args.reward):
        return
    question, answer, *more = pairs_of(dataset, part, args)[0]
    pool = Pool(1)
    try:
        problem = Problem(str(question), answer, str(question), [], row=more[1] if more else {})
        for name, program in Rewards(args, pool, Counter()).programs.items():
            reply = next(pool.map([(program, [[as_given(problem), MADE_UP, list(range(9)), False]])]))
            value = math.nan if reply.failed else number(reply.value[0])
            if value is None or not math.isfinite(value):
                reason = reply.failed or ("no answer in time" if value is None else f"it gave {value}")
                fail(f"--reward {name} fails for a made-up response to {problem.question[:80]!r}: {reason}.")
    finally:
        pool.close()


def as_given(problem: Problem) -> dict[str, Any]:
    """What a function receives of a problem."""
    answer = problem.answer if isinstance(problem.answer, str | tuple) else str(problem.answer)
    return {"question": problem.question, "answer": answer, "prompt": problem.prompt, "row": problem.row}


def require_binary(rewards: Tensor, why: str) -> None:
    """End the program if a reward is neither 0 nor 1; `why` says why the method needs that."""
    others = rewards[(rewards != 0) & (rewards != 1)]
    if len(others):
        advice = "use rewards of 0 and 1, or a method that takes any reward, such as grpo.py."
        fail(f"a reward of {others[0].item():g}, but {why}: {advice}", code=1)
