"""Mixtures of experts: what their routers choose, and a learner that replays an engine's choices."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from common.batch import Batch
from common.cli import fail

import torch
from torch import Tensor

Routed = tuple[Tensor, Tensor, Tensor]  # for N tokens: logits (N, E), weights (N, K), and numbers of experts (N, K)


def routers(model: Any) -> list[Any]:
    """The router of each layer that has experts; each returns a `Routed`."""
    return [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]


def check_routers(given: str, model: Any) -> None:
    """End the program if the routers are not known here; `given` is how the user named the model."""
    outputs = some_outputs(model)
    if not outputs or not all(len(output) == 3 and is_known(*output) for output in outputs):
        fail(
            f"{given} is not a mixture of experts whose routers return logits, weights and experts, as those of "
            "Mixtral and Qwen3-MoE do: take such a model, or sums-experts."
        )


@torch.no_grad()
def some_outputs(model: Any) -> list[Routed]:
    """What the routers return for a few tokens, in the order of the layers."""
    tokens = torch.arange(2, 10)[None] % model.config.get_text_config().vocab_size  # (1, 8)
    with watched(model) as outputs:
        model.base_model(input_ids=tokens, use_cache=False)
    return outputs


def is_known(logits: Tensor, weights: Tensor, experts: Tensor) -> bool:
    """Whether what a router returns is a `Routed`, with weights in proportion to the softmax of its logits."""
    if experts.dtype != torch.long:  # as in Granite's, which return the experts first
        return False
    chances = logits.softmax(-1).gather(1, experts)  # (N, K)
    shares = [values / values.sum(1, keepdim=True) for values in (chances, weights)]  # (N, K) twice
    return torch.allclose(*shares, rtol=0, atol=1e-4)


def routed_shape(model: Any) -> tuple[int, int]:
    """The number of layers with experts, L, and of the experts that a token uses in each, K."""
    found = routers(model)
    return len(found), found[0].top_k


@contextmanager
def watched(model: Any) -> Iterator[list[Routed]]:
    """Collects what the routers return inside the block, in the order of the layers."""
    outputs: list[Routed] = []
    handles = [router.register_forward_hook(lambda *call: outputs.append(call[2])) for router in routers(model)]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


# Replay of an engine's choices: R3, 2510.11370


def replay_routing(model: Any) -> None:
    """Make the model use the experts in `model.engine_experts` (b, S, L, K), if there are any.

    Where these are -1, it uses its own.
    """
    model.engine_experts = None
    for layer, (router, (_, weights, _)) in enumerate(zip(routers(model), some_outputs(model), strict=True)):
        normalize = torch.allclose(weights.sum(1), torch.ones(len(weights)), atol=1e-3)
        router.register_forward_hook(partial(replayed, model, layer, normalize))


def replayed(model: Any, layer: int, normalize: bool, router: Any, inputs: Any, output: Routed) -> Routed:
    """What a router returns with the engine's experts: their weights are the softmax of its own logits."""
    if model.engine_experts is None:
        return output
    logits, own_weights, own = output
    experts = model.engine_experts[:, :, layer].flatten(0, 1).to(own)  # (N, K)
    experts = torch.where(experts >= 0, experts, own)  # (N, K)
    weights = logits.float().softmax(-1).gather(1, experts)  # (N, K)
    if normalize:
        weights = weights / weights.sum(1, keepdim=True)
    return logits, weights.to(own_weights), experts


def set_engine_experts(model: Any, batch: Batch, rows: Tensor, S: int) -> None:
    """With --replay-routing, set what the model replays when it reads the first S tokens of some rows."""
    if not hasattr(model, "engine_experts"):
        return
    if not batch.experts.numel():
        fail("--replay-routing: these responses come without the engine's experts. Leave it out.")
    # Kept until the next pass, for a backward pass that recomputes activations.
    model.engine_experts = batch.experts[rows, :S] if len(rows) else None
