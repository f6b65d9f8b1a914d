"""How far updates move the routers of a small mixture of experts, and what routing replay is worth.

    python -m benchmarks.router_shift    # the embedded model: 16 experts, two of them used at a token

- RSPO's factor γ on the ratio (methods/rspo.py), after 4 and 16 updates of grpo.py on one batch of 256 responses.
- How often an engine with rounded weights and bf16 arithmetic uses other experts than the fp32 learner, and the sampled
  tokens' mean |p - p'|, with the learner's own experts and with the engine's (--replay-routing).
- Runs of grpo.py with a 4-bit engine, without and with replay.
"""

from dataclasses import dataclass
from statistics import mean
from typing import Any

import grpo
from claims.court import embedded, updates
from claims.runs import difference, trials
from common.batch import Batch, collate
from common.data import load_problems, sample_problems
from common.help import parse_args
from common.logprobs import batch_experts, batch_logps, routed_logps
from common.models import load_model
from common.transformers_engine import TransformersEngine
from methods import rspo
from tools.reports import today, write_report

import torch
import tyro
from torch import Tensor

MODEL, PRECISIONS = "sums-experts", ("bf16", "fp8", "int4")
TRAINING = f"grpo --model {MODEL} --steps 40 --eval-problems 256 --rollout-precision int4"


@dataclass
class Args:
    epochs: tuple[int, ...] = (1, 4)
    """Passes over the rollout batch, with four updates each."""
    precisions: tyro.conf.UseAppendAction[tuple[str, ...]] = PRECISIONS
    """Precisions of the engine."""
    seeds: int = 3
    """Number of seeds."""


def with_other_experts(first: Tensor, second: Tensor, mask: Tensor) -> float:
    """The fraction of tokens and layers whose experts (B, T, L, K) differ."""
    return (first.sort().values != second.sort().values).any(-1)[mask].float().mean().item()


@torch.no_grad()
def after_updates(epochs: int) -> dict[str, float]:
    args = grpo.Args(model=MODEL, update_epochs=epochs, micro_batch_tokens=10**9)
    model, batch, correct = embedded(args.prompts_per_step, args.responses_per_prompt, args)
    rows, mask = torch.arange(len(batch.tokens)), batch.response_mask  # (B,), (B, T)
    (old_logp, _), (experts, old_router_logp) = batch_logps(model, batch, args), batch_experts(model, batch, args)
    advantages = grpo.compute_advantages(correct, args).view(-1, 1).expand(mask.shape)  # (B, T)
    with torch.enable_grad():
        clipped = updates(model, batch, advantages, args)
    logp, router_logp, now = routed_logps(model, batch, rows, args)
    shift = rspo.router_shift(router_logp, experts, old_router_logp, rspo.Args(router_floor=0.0))  # (B, T)
    gamma, moved = shift.exp()[mask], ((logp - old_logp).exp() - 1).abs()[mask] > args.clip_eps  # (N,), (N,)
    return {
        "updates": len(clipped),
        "other experts": with_other_experts(experts, now, mask),
        "γ, mean": gamma.mean().item(),
        "γ, smallest": gamma.min().item(),
        "γ, mean where the ratio is outside of 1 ± 0.2": gamma[moved].mean().item(),
        "tokens below the floor of 0.8": (gamma < 0.8).float().mean().item(),
        "clipped": mean(clipped),
    }


def with_engine(precision: str) -> dict[str, Any]:
    args = grpo.Args(model=MODEL, replay_routing=True, rollout_precision=precision, micro_batch_tokens=10**9)
    model, tokenizer = load_model(args)
    problems = sample_problems(load_problems(args, model, tokenizer)[0], args.prompts_per_step, 1, args)
    rollouts = TransformersEngine(args, model, tokenizer).generate(problems, args.responses_per_prompt, 1)
    batch = collate(problems, rollouts, model.device)

    def mismatch(batch: Batch) -> float:
        difference = batch_logps(model, batch, args)[0].exp() - batch.rollout_logp.exp()  # (B, T)
        return difference.abs()[batch.response_mask].mean().item()

    of_engine, replayed = batch_experts(model, batch, args)[0], mismatch(batch)
    batch.experts = torch.full_like(batch.experts, -1)
    return {
        "engine": precision,
        "other experts": with_other_experts(batch_experts(model, batch, args)[0], of_engine, batch.response_mask),
        "mean |p - p'|": mismatch(batch),
        "mean |p - p'|, replayed": replayed,
    }


def in_training(seeds: int) -> dict[str, Any]:
    """Final accuracy, and mean mismatch over the last ten steps, for each seed."""
    done = trials({"own experts": TRAINING, "replayed": f"{TRAINING} --replay-routing"}, seeds)
    return {
        name: {
            "accuracy": [run.last("eval/avg") for run in runs],
            "mean |p - p'|": [run.mean("mismatch_mean", 10) for run in runs],
        }
        for name, runs in done.items()
    }


def main(args: Args) -> None:
    found: dict[str, Any] = {"date": today()}
    found["after updates"] = [after_updates(epochs) for epochs in args.epochs]
    found["engine"] = [with_engine(precision) for precision in args.precisions]
    write_report("router_shift", found)
    found["training"] = in_training(args.seeds)
    write_report("router_shift", found)
    for rows in (found["after updates"], found["engine"]):
        for key in rows[0]:
            values = (f"{row[key]:>12.4g}" if not isinstance(row[key], str) else f"{row[key]:>12}" for row in rows)
            print(f"{key:50}" + "".join(values))
    for metric in ("accuracy", "mean |p - p'|"):
        own, replayed = (found["training"][name][metric] for name in ("own experts", "replayed"))
        change = difference(own, replayed, paired=False)
        print(f"in training, {metric}: {mean(own):.4f} -> {mean(replayed):.4f}, {change.mean:+.4f} ± {change.half:.4f}")


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
