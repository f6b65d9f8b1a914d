"""Do the routers of a small mixture of experts differ between sampler and learner, or move in an update?

    python -m worlds.sums.pretrain --experts 16 --out runs/experts-16    # 16 copies of each MLP, two of them at a token
    python -m benchmarks.router_shift runs/experts-16

One rollout batch of 256 responses. Then, for two methods that have no file here:
- RSPO (2510.23027) weights a token by exp(-mean |log r_new - log r_old|) over its old experts and the layers, not below
  a floor of 0.8. Measured: that weight after 4 and after 16 updates of grpo.py on the batch.
- Routing replay (R3, 2510.11370) lets the learner use the experts that the sampler used. Measured: how often a sampler
  with rounded weights, and bf16 arithmetic, uses other experts than the learner in fp32, and the mean |p - p'| of the
  sampled tokens with the learner's own experts and with the sampler's.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpo
from claims.court import embedded, updates
from common.batch import Batch
from common.engines import ROUNDING
from common.help import parse_args
from common.logprobs import batch_logps
from tools.reports import read_report, today, write_report

import torch
import tyro
from torch import Tensor

FLOOR = 0.8
PRECISIONS = ("bf16", "fp8", "int4")


@dataclass
class Args:
    models: tyro.conf.Positional[tuple[str, ...]]
    """Folders of mixtures of experts."""
    epochs: tuple[int, ...] = (1, 4)
    """Passes over the rollout batch, with four updates each."""


def settings(model: str, epochs: int = 1) -> grpo.Args:
    """Of grpo.py; each pass reads the whole batch at once."""
    return grpo.Args(model=model, update_epochs=epochs, micro_batch_tokens=10**9)


@torch.no_grad()
def router_logps(model: Any, batch: Batch) -> Tensor:
    """Log-probs (N, L, E) of the experts of each layer at the N tokens of all responses."""
    logits = model(batch.tokens, output_router_logits=True).router_logits  # L of (B S, E)
    at = torch.arange(batch.tokens.shape[1], device=model.device)  # (S,)
    start = batch.prompt_lengths[:, None]  # (B, 1)
    response = (at >= start) & (at < batch.lengths[:, None])  # (B, S)
    return torch.stack([layer.float().log_softmax(-1) for layer in logits], 1)[response.flatten()]


def with_other_experts(before: Tensor, after: Tensor) -> float:
    """Fraction of tokens and layers of which two experts are others, from log-probs (N, L, E)."""
    first, second = (logps.topk(2).indices.sort().values for logps in (before, after))  # (N, L, 2)
    return (first != second).any(-1).float().mean().item()


def after_updates(name: str, epochs: int) -> dict[str, float]:
    args = settings(name, epochs)
    model, batch, correct = embedded(args.prompts_per_step, args.responses_per_prompt, args)
    before, old_logp = router_logps(model, batch), batch_logps(model, batch, args)[0]  # (N, L, E), (B, T)
    advantages = grpo.compute_advantages(correct, args).view(-1, 1).expand(batch.response_mask.shape)  # (B, T)
    clipped = updates(model, batch, advantages, args)
    after, logp = router_logps(model, batch), batch_logps(model, batch, args)[0]  # (N, L, E), (B, T)
    top = before.topk(2).indices  # (N, L, 2)
    weight = torch.exp(-(after.gather(-1, top) - before.gather(-1, top)).abs().mean((1, 2)))  # (N,)
    ratio = (logp - old_logp)[batch.response_mask].exp()  # (N,)
    return {
        "updates": len(clipped),
        "other experts": with_other_experts(before, after),
        "RSPO's weight, mean": weight.mean().item(),
        "RSPO's weight, smallest": weight.min().item(),
        "tokens below the floor": (weight < FLOOR).float().mean().item(),
        "mean weight where the ratio is outside of 1 ± 0.2": weight[(ratio - 1).abs() > args.clip_eps].mean().item(),
        "clipped": sum(clipped) / len(clipped),
        "busiest expert": (top.flatten().bincount() / top.numel()).max().item(),
    }


def sampler(model: Any, precision: str) -> Any:
    """The model as a sampler of this precision has it: rounded matrices, those of experts too, and bf16 arithmetic."""
    copied = copy.deepcopy(model)
    for name, weight in copied.named_parameters() if precision in ROUNDING else ():
        if weight.ndim > 1 and not any(part in name for part in ("embed", "lm_head", "gate.weight")):
            with torch.no_grad():
                for matrix in weight.view(-1, *weight.shape[-2:]):
                    matrix.copy_(ROUNDING[precision](matrix))
    return copied.to(torch.bfloat16)


def hooked(model: Any, hook: Callable[..., Any], function: Callable[[], Tensor]) -> Tensor:
    """What a function returns while a hook sees the output of every router, in the order of the layers."""
    handles = [layer.mlp.gate.register_forward_hook(hook) for layer in model.model.layers]
    found = function()
    for handle in handles:
        handle.remove()
    return found


def with_sampler(name: str, precision: str) -> dict[str, Any]:
    args = settings(name)
    model, batch, _ = embedded(args.prompts_per_step, args.responses_per_prompt, args)
    rounded, used = sampler(model, precision), []

    def record(router: Any, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
        used.append(output[2])  # (B S, 2)

    def replay(router: Any, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, _, _ = output  # (B S, E)
        experts = used.pop(0)  # (B S, 2)
        chances = logits.float().softmax(-1).gather(1, experts)  # (B S, 2)
        return logits, chances / chances.sum(1, keepdim=True), experts

    theirs = hooked(rounded, record, lambda: batch_logps(rounded, batch, args)[0])  # (B, T)
    replayed = hooked(model, replay, lambda: batch_logps(model, batch, args)[0])  # (B, T)
    assert not used, "not every layer's experts were replayed"

    def mismatch(ours: Tensor) -> float:
        return (ours.exp() - theirs.exp()).abs()[batch.response_mask].mean().item()

    return {
        "precision": precision,
        "other experts": with_other_experts(router_logps(model, batch), router_logps(rounded, batch)),
        "mean |p - p'|": mismatch(batch_logps(model, batch, args)[0]),
        "mean |p - p'|, replayed": mismatch(replayed),
    }


def main(args: Args) -> None:
    found = read_report("router_shift", {})
    for name in args.models:
        updated = [after_updates(name, epochs) for epochs in args.epochs]
        sampled = [with_sampler(name, precision) for precision in PRECISIONS]
        found[name.rpartition("/")[2]] = {"after updates": updated, "sampler": sampled, "date": today()}
        write_report("router_shift", found)
        for rows in (updated, sampled):
            for key in rows[0]:
                values = (f"{row[key]:>12.4g}" if not isinstance(row[key], str) else f"{row[key]:>12}" for row in rows)
                print(f"{name}: {key:50}" + "".join(values))


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
