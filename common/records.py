"""Problems and rollouts, which all parts of the code exchange."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class ScoredAnswer:
    """An answer that a function of its data set scores from 0 to 1, in a worker process that can be killed."""

    answer: str
    scorer: str  # file.py:function, called like a reward function with `problem.payload`
    payload: str

    def __str__(self) -> str:
        return self.answer


@dataclass(frozen=True)
class Problem:
    """A question, its answer, and the prompt, as text and as token ids.

    Any one of several answers is correct. Where the correct answers cannot be listed, the answer is a function that
    checks what is in the box, or names the function that scores it.
    """

    question: str
    answer: str | tuple[str, ...] | Callable[[str], bool] | ScoredAnswer
    prompt: str
    prompt_ids: list[int]
    dataset: str = ""  # with several data sets, a short name of this one
    weight: float = 1.0  # mixing weight of that data set: its fraction of a rollout batch, on average
    where: str = ""  # in its data set, such as "row 7 of split train"
    row: dict[str, Any] = field(default_factory=dict, compare=False)  # all its columns, for reward functions
    messages: list[dict[str, str]] | None = field(default=None, compare=False)  # of a question that is a chat


@dataclass
class Episode:
    """The course of a response with an environment: its turns, in order, and how it ended."""

    starts: list[int]  # the token with which each turn begins
    states: list[str | None]  # the environment's before each turn; None equals no other
    reward: float | None = None  # the environment's; without it the verifier judges the text
    failure: str = ""  # why the environment failed, if it did

    def __len__(self) -> int:
        return len(self.starts)


@dataclass
class Rollouts:
    """B = P·G responses, those to one prompt next to each other."""

    tokens: list[list[int]] = field(default_factory=list)  # EOS included
    logps: list[list[float]] = field(default_factory=list)  # under the distribution that they were sampled from
    truncated: list[bool] = field(default_factory=list)  # cut off at the length limit, without EOS
    # False for inserted tokens such as tool output, whose log-prob is 0.
    sampled: list[list[bool]] = field(default_factory=list)
    # Only if requested: the K likeliest tokens at each position and their log-probs.
    top_ids: list[Tensor] = field(default_factory=list)  # each (|o|, K)
    top_logps: list[Tensor] = field(default_factory=list)  # each (|o|, K)
    # Only with --replay-routing: the experts used for each token but the last, the prompt's included; -1 if unknown.
    experts: list[Tensor] = field(default_factory=list)  # each (prompt + |o| - 1, L, K)
    # Set by the verifier: whether each answer is correct. The rewards that it returns may differ.
    correct: list[bool] = field(default_factory=list)
    # What each function of --reward gave, by its name; None where it took too long. Also set by the verifier.
    rewards: list[dict[str, float | None]] = field(default_factory=list)
    # What the functions say of each response, to methods that learn from it; "" for nothing. Also set by the verifier.
    feedback: list[str] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)  # only with an environment

    def select(self, rows: Iterable[int]) -> "Rollouts":
        """The responses of these rows."""
        rows = list(rows)
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        return Rollouts(**{name: [column[i] for i in rows] if column else [] for name, column in columns.items()})

    def split(self, size: int) -> list["Rollouts"]:
        """Parts of `size` responses each."""
        return [self.select(range(start, start + size)) for start in range(0, len(self.tokens), size)]

    def splice(self, cuts: dict[int, tuple[int, list[int]]], limit: int) -> "Rollouts":
        """Some rows, each cut and followed by its inserted tokens; at most `limit` tokens in all."""
        spliced = Rollouts()
        for row, (end, inserted) in cuts.items():
            tokens = (self.tokens[row][:end] + inserted)[:limit]
            spliced.tokens.append(tokens)
            spliced.logps.append(self.logps[row][:end] + [0.0] * (len(tokens) - end))
            spliced.sampled.append(self.sampled[row][:end] + [False] * (len(tokens) - end))
            spliced.truncated.append(True)
        return spliced

    def extended(self, rest: "Rollouts") -> "Rollouts":
        """The responses, continued by `rest`."""
        return Rollouts(
            [a + b for a, b in zip(self.tokens, rest.tokens, strict=True)],
            [a + b for a, b in zip(self.logps, rest.logps, strict=True)],
            rest.truncated,
            [a + b for a, b in zip(self.sampled, rest.sampled, strict=True)],
        )

    def replace(self, rows: Iterable[int], others: "Rollouts") -> "Rollouts":
        """The responses, with some rows replaced by others."""
        source = {row: len(self.tokens) + number for number, row in enumerate(rows)}
        return Rollouts.join([self, others]).select(source.get(row, row) for row in range(len(self.tokens)))

    @staticmethod
    def join(parts: Iterable["Rollouts"]) -> "Rollouts":
        """All responses of the parts, in order. Fields that some part lacks, such as verdicts, are left out."""
        joined, parts = Rollouts(), [part for part in parts if part.tokens]
        for f in fields(joined):
            columns = [getattr(part, f.name) for part in parts]
            if all(columns):
                getattr(joined, f.name).extend(chain(*columns))
        return joined


Sample = tuple[Problem, str, float]  # a problem, a response to it, and its reward
