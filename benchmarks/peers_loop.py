"""Run a script's own `main` at a given point: the gradient of its minibatch's loss by every log-prob.

The point replaces what `main` loads, samples, verifies or computes with a model. Rewards, advantages, ratios, clipping,
TIS, the KL and token weights come from the script's own loop. Tensors are (B, T), in float64.
"""

import inspect
from collections import defaultdict
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import patch

from common.batch import collate
from common.records import Problem, Rollouts
from tools.scripts import load

import torch
from torch import Tensor

# One update with all rows and unclipped gradients. DAPO and Olmo 3 get their groups in one round.
SETTINGS = {"num_minibatches": 1, "update_epochs": 1, "max_grad_norm": 1e9, "max_rounds": 1, "teacher": ""}


class Done(Exception):
    """The update's gradient has been computed."""


class Run:
    """One step of a run without a folder or a log."""

    def __init__(self, args: Any, _: str) -> None:
        self.args, self.state = args, {}
        self.log = self.log_rollouts = self.log_tokens = self.log_loss = self.write_line = lambda *_, **__: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, *_: Any) -> bool:
        return kind is Done

    def closing(self, thing: Any) -> Any:
        return thing

    def steps(self, *_: Any, **__: Any) -> list[int]:
        return [1]

    def check_update(self, **_: Any) -> None:
        raise Done


class Model:
    """Log-probs instead of a model: `logp` has the gradient, and `before` is the value before the update."""

    device = "cpu"

    def __init__(self, logp: Tensor, before: Tensor) -> None:
        self.logp, self.before = logp.clone().requires_grad_(), before

    def parameters(self) -> list[Tensor]:
        return [self.logp]


class CriticOf:
    """A critic that returns the point's values for the given rows."""

    def __init__(self, values: Model) -> None:
        self.values, self.parameters = values, values.parameters

    def __call__(self, _: Any, rows: Tensor, *__: Any) -> Tensor:
        return self.values.logp[rows]


def two_tokens(logp: Tensor) -> Tensor:
    """Log-probs (N, 2) over a vocabulary of two tokens; the first one was sampled, with `logp` (N,)."""
    return torch.stack([logp, torch.log1p(-logp.exp())], -1)


class TeacherOf:
    """A self-teacher with the given log-probs, whatever feedback it gets."""

    def __init__(self, model: Model, mask: Tensor, args: Any) -> None:
        self.model, self.mask, self.args = model, mask, args
        self.batch = lambda *_: None

    def describe(self, _: Rollouts, shown: list[int | None], __: Any) -> list[int | None]:
        return shown

    def weights(self, told: list[Any]) -> Tensor:
        return torch.tensor([[(1 - self.args.grpo_weight) * (what is not None)] for what in told])

    def logps(self, _: Any, rows: Tensor) -> Tensor:
        return two_tokens(self.model.logp[rows][self.mask[rows]])


def loop_gradient(method: str, settings: dict[str, Any], point: dict[str, Tensor], what: str) -> tuple[Tensor, Tensor]:
    """The gradient (B, T) by the log-probs, or by the values if `what` is "critic", and the advantages (B, T)."""
    script = load(method)
    (P, G), mask = point["rewards"].shape, point["mask"].bool()
    known = {name: value for name, value in SETTINGS.items() if name in inspect.signature(script.Args).parameters}
    args = script.Args(**known | {"max_response_tokens": 50} | settings, prompts_per_step=P, responses_per_prompt=G)
    learner, critic = Model(point["logp"], point["old_logp"]), Model(point["new_values"], point["values"])
    fixed = {name: Model(point[name], point[name]) for name in ("ref", "teacher")}
    models = iter([learner, fixed["ref"], fixed["ref"]])  # the critic is built from another model
    problems = [Problem(str(i), "", str(i), [1]) for i in range(P)]
    rollouts = Rollouts([[1] * n for n in mask.sum(1)], [[0.0] * n for n in mask.sum(1)], [False] * (P * G))
    rollouts.sampled = [[True] * n for n in mask.sum(1)]
    rollouts.correct = (point["rewards"].flatten() > 0.5).tolist()
    advantages, under_way = torch.zeros_like(point["logp"]), []  # rows of the micro-batch

    def token_logps(model: Model, _: Any, rows: Tensor, *__: Any) -> Tensor:
        under_way[:] = [rows]
        return model.logp[rows]

    def policy_loss(*given: Any) -> Any:
        advantages[under_way[0]] = inspect.signature(original).bind(*given).arguments["advantages"].detach()
        return original(*given)

    def batch_logps(model: Model, _: Any, __: Any, minibatch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return (model.before if minibatch is None else model.logp).detach(), torch.zeros_like(mask, dtype=torch.double)

    def collated(*given: Any) -> Any:
        batch = collate(*given)
        batch.rollout_logp = point["rollout_logp"]
        return batch

    def verify(*_: Any) -> Tensor:
        return point["rewards"]

    verify.find_answer = None
    original = script.policy_loss
    engine = SimpleNamespace(load_weights=lambda _: None, sleep=lambda: None, generate=lambda *_, **__: rollouts)
    names = {
        "Run": Run, "load_model": lambda *_, **__: (next(models), ""), "load_teacher": lambda *_: fixed["teacher"],
        "load_problems": lambda *_: (problems, []), "sample_problems": lambda *_: problems,
        "make_engine": lambda *_: engine, "Verifier": lambda *_: verify, "collate": collated,
        "policy_loss": policy_loss, "token_logps": token_logps, "batch_logps": batch_logps,
        "place": lambda model: model, "Critic": lambda _: CriticOf(critic),
        "in_micro_batches": lambda *_: critic.before, "SelfTeacher": lambda *_: TeacherOf(fixed["teacher"], mask, args),
        "vocabulary_logps": lambda model, _, rows, *__: two_tokens(model.logp[rows][mask[rows]]),
        "solutions_to": lambda *_, **__: defaultdict(str),
        "rewards_apart": lambda *_: (point["function_rewards"], point["reward_weights"]),
    }  # fmt: skip
    torch.set_default_dtype(torch.double)  # for token weights
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.float)
        for name in names.keys() & vars(script).keys():
            stack.enter_context(patch.object(script, name, names[name]))
        script.main(args)
    return (critic if what == "critic" else learner).logp.grad, advantages
