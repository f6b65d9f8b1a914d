"""Does a small mixture of experts show the router shift that RSPO corrects (2510.23027)?

    python -m worlds.pretrain --experts 4 --batch 64 --steps 1390 --out runs/experts    # the model, 1.0 M parameters
    python -m benchmarks.router_shift --model runs/experts

One rollout batch, then the updates of grpo.py on it, 4 and 16 of them. Before and after, every layer's router says
which two experts a token has, and how likely each is. RSPO weights a token by exp(-mean |log r_new - log r_old|), over
its old experts and the layers, and not below a floor of 0.8. What it has to correct is what lies below 1.
The figures land in reports/router_shift.json.
"""

from dataclasses import dataclass
from typing import Any

import grpo
from claims.court import embedded, scored, updates
from common.batch import Batch
from tools.reports import write_report

import torch
import tyro
from torch import Tensor

FLOOR = 0.8


@dataclass
class Args:
    model: str = "runs/experts"
    """A mixture of experts."""
    epochs: tuple[int, ...] = (1, 4)
    """Passes over the rollout batch, with four updates each."""


@torch.no_grad()
def router_logps(model: Any, batch: Batch) -> Tensor:
    """Log-probs (N, L, E) of the experts of each layer at the N tokens of all responses."""
    logits = model(batch.tokens, output_router_logits=True).router_logits  # L of (B S, E)
    at = torch.arange(batch.tokens.shape[1], device=model.device)  # (S,)
    start = batch.prompt_lengths[:, None]  # (B, 1)
    response = (at >= start) & (at < batch.lengths[:, None])  # (B, S)
    return torch.stack([layer.float().log_softmax(-1) for layer in logits], 1)[response.flatten()]


def measure(model_name: str, epochs: int) -> dict[str, float]:
    args = grpo.Args(model=model_name, update_epochs=epochs)
    P, G = args.prompts_per_step, args.responses_per_prompt
    model, batch, correct = embedded(P, G, args)
    before, old_logp = router_logps(model, batch), scored(model, batch, "fp32", args)  # (N, L, E), (B, T)
    advantages = grpo.compute_advantages(correct, args).view(-1, 1).expand(batch.response_mask.shape)  # (B, T)
    clipped = updates(model, batch, advantages, args)
    after, logp = router_logps(model, batch), scored(model, batch, "fp32", args)  # (N, L, E), (B, T)
    top, then = before.topk(2).indices, after.topk(2).indices  # (N, L, 2)
    moved = (top.sort().values != then.sort().values).any(-1)  # (N, L)
    shift = (after.gather(-1, top) - before.gather(-1, top)).abs().mean((1, 2))  # (N,)
    ratio = (logp - old_logp)[batch.response_mask].exp()  # (N,)
    weight = torch.exp(-shift)  # (N,)
    outside = (ratio - 1).abs() > args.clip_eps  # (N,)
    return {
        "accuracy": correct.mean().item(),
        "updates": len(clipped),
        "other experts, fraction of tokens and layers": moved.float().mean().item(),
        "RSPO's weight, mean": weight.mean().item(),
        "RSPO's weight, smallest": weight.min().item(),
        "tokens below the floor": (weight < FLOOR).float().mean().item(),
        "mean weight where the ratio is outside of 1 ± 0.2": weight[outside].mean().item(),
        "clipped": sum(clipped) / len(clipped),
        "busiest expert's fraction": (top.flatten(0, 1).flatten().bincount() / top.numel()).max().item(),
    }


def main(args: Args) -> None:
    results = [measure(args.model, epochs) for epochs in args.epochs]
    write_report("router_shift", results)
    for key in results[0]:
        print(f"{key:60}" + "".join(f"{result[key]:12.4g}" for result in results))


if __name__ == "__main__":
    main(tyro.cli(Args))
