"""A slow, plain reference for each script: row by row, in Python loops and float64, without any code of the scripts.

Each file has a class `Oracle` for the script of the same name. It inherits from the parent's oracle and implements what
the method changes again, from the paper. `test_objectives.py` compares functions with it, `test_steps.py` every update.
"""

import importlib
import math
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

from tools.scripts import call

import torch

# Settings that many CASES share. Here the ratio's denominator has the engine's log-probs.
ENGINE_ANCHOR = {"ratio_anchor": "engine", "tis_cap": 0.0}
# One update per rollout batch, with another group size.
ONE_UPDATE = {"tis_cap": 1.1, "num_minibatches": 1, "update_epochs": 1, "responses_per_prompt": 3}


@dataclass
class Row:
    """One response as the loss sees it; lists have one entry per token."""

    new: list[float]  # log-probs under the current policy
    old: list[float]  # under the learner at the rollout weights
    rollout: list[float]  # as the engine reported them
    advantages: list[float]
    ref: list[float] | None = None  # under the reference model
    # For the top-K divergences: {token id: log-prob} at each position, for the K tokens that the engine reported
    top_new: list[dict[int, float]] = field(default_factory=list)
    top_rollout: list[dict[int, float]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)  # under the learner at the rollout weights
    chosen: list[bool] = field(default_factory=list)  # the result of the function named by `Reference.CHOOSES`
    teacher: list[Any] = field(default_factory=list)  # the method's second model: log-probs (V,) at each position
    # For a mixture of experts: the routers' log-probs (L, E) at each position, at the rollout weights and now
    old_routers: list[Any] = field(default_factory=list)
    routers: list[Any] = field(default_factory=list)


@dataclass
class Response:
    """A sampled response and its verdict."""

    prompt: list[int]
    tokens: list[int]
    logps: list[float]
    truncated: bool
    correct: bool
    sampled: list[bool]  # other tokens were inserted and have no loss
    top: list[dict[int, float]] = field(default_factory=list)  # {token id: log-prob} at each position
    step: int = 0  # the step that sampled it; 0 if the engine did not sample it
    # Weights loaded during the response, by token: their version, and whether keys and values are recomputed.
    weights: dict[int, tuple[int, bool]] = field(default_factory=lambda: {0: (0, True)})


def finite(value: float) -> bool:
    return math.isfinite(value)


def positive(value: float) -> bool:
    return 0 < value <= 1e6


def not_negative(value: float) -> bool:
    return 0 <= value <= 1e6


def fraction(value: float) -> bool:
    return 0 <= value <= 1


def at_least(bound: int) -> Any:
    return lambda value: value >= bound


def without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    """A parent's RANGES or DEFAULTS without settings that the method lacks."""
    return {name: value for name, value in settings.items() if name not in names}


def of_functions(each: dict[str, list[float]]) -> dict[str, float]:
    """The numbers logged for reward functions, from what each gave to the responses of a step."""
    numbers = {}
    for name, values in each.items():
        spread = {"": fmean(values), "/std": pstdev(values), "/in_time": 1.0}
        numbers |= {f"reward/{name}{suffix}": value for suffix, value in spread.items()}
    return numbers


class Reference:
    """REINFORCE's step; methods override what they change."""

    # Settings of whole runs to compare. Together they give every setting of the method a value other than its default.
    # The quick layer runs the first one, which should use as much of the method as possible.
    CASES: list[dict[str, Any]] = [{}]
    # For each numeric setting of the method, whether a value is allowed, independently of the types in `Args`.
    RANGES: dict[str, Any] = {}
    # Defaults of the method's settings: the paper's, if it gives any.
    DEFAULTS: dict[str, Any] = {}
    # Settings that no case varies, because they have no effect in the loop of `main`; they need their own tests.
    ELSEWHERE: set[str] = set()
    # Whether the weights still move if all answers are correct, and if all are incorrect and equally long.
    LEARNS_WHEN_ALL_IS_CORRECT = LEARNS_WITHOUT_REWARDS = False
    # The script's function that returns a mask (B, T) of chosen tokens, if it has one; `Row.chosen` is its result.
    CHOOSES = ""

    def __init__(self, args: Any) -> None:
        self.args = args

    def settings_fit(self) -> bool:
        """Whether the method's settings are compatible, each being within its range."""
        return True

    # From what was sampled to the rows of the batch

    def batch(self, rounds: list[list[list[Response]]]) -> list[list[Response]]:
        """The groups to train on, out of those from each round of generation."""
        (groups,) = rounds
        return groups

    def counts(self, response: Response) -> bool:
        """Whether a response is part of the loss."""
        return True

    def leaves_out(self) -> bool:
        """Whether a run may leave some responses out of the loss."""
        return False

    def rewards(self, groups: list[list[Response]], kl: list[list[float]]) -> list[list[float]]:
        """Rewards (P, G); `kl` (P, G) are sums over tokens of log π_old - log π_ref."""
        return [[float(r.correct) for r in group] for group in groups]

    def advantages(self, rewards: list[list[float]]) -> list[list[float]]:
        raise NotImplementedError("each method has its own")

    def both_advantages(self, module: Any, rewards: list[list[float]]) -> tuple[Any, Any]:
        """Advantages for rewards (P, G): the script's, as a tensor, and this oracle's, as lists."""
        of_script = call(module.compute_advantages, rewards=torch.tensor(rewards, dtype=torch.float64), args=self.args)
        return of_script, self.advantages(rewards)

    def prepare(self, rows: list[Row]) -> None:
        """Handle all rows of a rollout batch at the rollout weights; advantages may become different per token."""

    def passes(self, rows: list[Row]) -> list[list[list[bool]]]:
        """Passes over a rollout batch's minibatches: for each pass, which tokens of each row have a loss."""
        return [[[True] * len(row.old) for row in rows]]

    def learns(self, step: int) -> bool:
        """Whether a step updates the policy."""
        return True

    def renews_reference(self, step: int, rows: list[Row], responses: list[Response]) -> bool:
        """Whether the policy becomes the reference before a step's updates; `rows` still have the old one."""
        return False

    def restarts_optimizer(self) -> bool:
        """Whether Adam's moments are reset with a new reference."""
        return False

    def prepare_update(self, rows: list[Row], responses: list[Response]) -> None:
        """Handle a minibatch's rows at the weights before its update; may change advantages."""

    # The loss

    def length(self, row: Row) -> int:
        """Number of a response's tokens that count."""
        return len(row.old)

    def weight(self, lengths: list[int], i: int) -> float:
        """The weight of each token of response i in a minibatch."""
        raise NotImplementedError("each method has its own")

    def tis(self, row: Row) -> list[float]:
        """Weights for numerical differences between engine and learner, one per token."""
        if not self.args.tis_cap:
            return [1.0] * len(row.old)
        return [min(math.exp(o - r), self.args.tis_cap) for o, r in zip(row.old, row.rollout, strict=True)]

    def anchor(self, row: Row) -> list[float]:
        """The log-probs in the ratio's denominator."""
        return row.rollout if getattr(self.args, "ratio_anchor", "learner") == "engine" else row.old

    def row(self, row: Row) -> tuple[list[float], list[float]]:
        """A response's losses per token, weighted by TIS, and their sum's derivative by each `new` log-prob."""
        raise NotImplementedError("each method has its own")

    def entropy_slopes(self, row: Row) -> list[float]:
        """The derivative of a response's losses with respect to the policy's entropy at each token."""
        return [0.0] * len(row.new)

    def slope_beside(self, responses: list[Response], i: int) -> float:
        """The derivative of a second minibatch loss by response i's log-probs, the same for all of them."""
        return 0.0

    def distribution_loss(self, row: Row, every: list[Any]) -> Any:
        """The part of a response's loss that depends on whole distributions (V,), for autograd."""
        return 0.0

    def with_kl(self, row: Row) -> tuple[list[float], list[float]]:
        """The result of `row` plus the KL in the loss."""
        return self.row(row)

    # The log: numbers by their names in docs/runs.md

    def logged_rewards(self, groups: list[list[Response]], kl: list[list[float]]) -> list[list[float]]:
        """Rewards (P, G) as they are logged."""
        return self.rewards(groups, kl)

    def step_numbers(
        self, rounds: list[list[list[Response]]], groups: list[list[Response]], rows: list[Row]
    ) -> dict[str, float]:
        """The method's own numbers for a step, from what was generated, the groups of the batch, and its rows."""
        return {}

    def rollout_numbers(self, row: Row) -> dict[str, list[float]]:
        """Numbers for each token of a response, at the rollout weights."""
        weights, cap = self.tis(row), self.args.tis_cap
        return {"tis_weight": weights, "tis_truncated": [abs(w - cap) < 1e-9 and cap > 0 for w in weights]}

    def ratios(self, row: Row) -> list[float]:
        """The ratio at each token of a response in an update."""
        return [math.exp(new - anchor) for new, anchor in zip(row.new, self.anchor(row), strict=True)]

    def token_numbers(self, row: Row) -> dict[str, list[float]]:
        """Other numbers for each token of a response in an update, besides the ratio."""
        return {}

    def update_numbers(self, rows: list[Row], responses: list[Response]) -> dict[str, float]:
        """Numbers for an update, besides the loss and the gradient's norm."""
        return {}


def oracle(name: str, args: Any) -> Reference:
    return importlib.import_module(f"oracles.{name}").Oracle(args)
