"""Trains the embedded model with the loop of loop.py. What it samples is verified, logged and evaluated here."""

import importlib
from collections.abc import Iterable
from typing import Any

from common.batch import collate
from common.cli import fail
from common.data import load_problems, sample_problems
from common.engines import make_engine
from common.help import parse_args
from common.logprobs import batch_logps
from common.models import load_model
from common.records import Problem
from common.run import Run
from common.verification import Verifier

import torch
from loop import train  # yours
from torch import Tensor

METHOD = "grpo"
Args = importlib.import_module(f"loops.{METHOD}").Args


class Policy(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits.float()  # (B, S, V)


class Optimizer(torch.optim.AdamW):
    """AdamW that logs the norm of each gradient."""

    def __init__(self, run: Run, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, lr=run.args.lr, weight_decay=run.args.weight_decay)
        self.run = run

    def step(self) -> None:
        gradients = [weight.grad for weight in self.param_groups[0]["params"] if weight.grad is not None]
        self.run.check_update(grad_norm=torch.nn.utils.get_total_norm(gradients))
        super().step()


class World:
    """The loop's `engine` and `data`. Each step is logged, and evaluated if due, when the next one begins."""

    def __init__(self, run: Run, model: Any, tokenizer: Any, optimizer: Optimizer) -> None:
        self.run, self.model, self.tokenizer = run, model, tokenizer
        self.problems, held_out = load_problems(run.args, model, tokenizer)
        self.verifier = run.closing(Verifier(run.args, tokenizer, self.problems + held_out))
        self.engine = run.closing(make_engine(run.args, model, tokenizer, self.problems + held_out))
        self.steps = run.steps(model, tokenizer, optimizer, self.engine, self.verifier, held_out)

    def sample(self, step: int) -> list[Problem]:
        if next(self.steps, None) != step:
            fail(f"loop.py samples problems for step {step}: call data.sample once in each step, from 1 to args.steps.")
        return sample_problems(self.problems, self.run.args.prompts_per_step, step, self.run.args)

    def text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def load_weights(self, policy: Policy) -> None:
        self.engine.load_weights(policy.model)

    def generate(self, problems: list[Problem], G: int) -> tuple[list[list[int]], list[list[float]], list[bool]]:
        rollouts = self.engine.generate(problems, G, self.run.step)
        batch = collate(problems, rollouts, self.model.device)
        logp, entropy = batch_logps(self.model, batch, self.run.args)  # (B, T), (B, T)
        mask = batch.response_mask  # (B, T)
        rewards = self.verifier(problems, rollouts)  # (P, G)
        self.run.log_rollouts(problems, rollouts, rewards, None, logp, batch.rollout_logp, mask)
        self.run.log_tokens({"entropy": entropy}, mask / (len(mask) * mask.sum(1, keepdim=True)), mask)
        return rollouts.tokens, rollouts.logps, rollouts.truncated


def main(args: Any) -> None:
    with Run(args, __file__) as run:
        model, tokenizer = load_model(run.args)
        optimizer = Optimizer(run, model.parameters())
        world = World(run, model, tokenizer, optimizer)
        train(Policy(model), world, world, optimizer, run.args)
        next(world.steps, None)


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
