"""Mixtures of experts: what their routers choose, and a learner that replays an engine's choices."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from common.batch import Batch
from common.cli import fail

import torch
from torch import Tensor

Routed = tuple[Tensor, Tensor, Tensor]  # of N tokens: logits (N, E), weights (N, K), and numbers of experts (N, K)


def routers(model: Any) -> list[Any]:
    """The router of each layer that has experts; each returns a `Routed`."""
    return [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]


def require_experts(given: str, model: Any) -> None:
    """End the program if the model has none; `given` is what the user asked for."""
    if not routers(model):
        fail(f"{given} needs a mixture of experts with a router in each layer, such as --model sums-experts.")


def routed_shape(model: Any) -> tuple[int, int]:
    """Layers L that have experts, and experts K that a token uses in each."""
    return len(routers(model)), model.config.get_text_config().num_experts_per_tok


@contextmanager
def watched(model: Any) -> Iterator[list[Routed]]:
    """What the routers return meanwhile, in the order of the layers."""
    outputs: list[Routed] = []
    handles = [router.register_forward_hook(lambda *call: outputs.append(call[2])) for router in routers(model)]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


# Replay of an engine's choices: R3, 2510.11370


def replay_routing(given: str, model: Any) -> None:
    """From now on the model uses the experts that stand in `model.engine_experts` (b, S, L, K), if there are any.

    Where -1 stands, it uses its own. Ends the program if the routers weight their experts in an unknown way.
    """
    require_experts("--replay-routing", model)
    model.engine_experts = None
    for layer, router in enumerate(routers(model)):
        router.register_forward_hook(partial(replayed, model, layer))
    tokens = torch.arange(2, 10)[None] % model.config.get_text_config().vocab_size  # (1, 8)
    with torch.no_grad(), watched(model) as outputs:
        own = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state  # (1, 8, D)
        model.engine_experts = torch.stack([experts for _, _, experts in outputs], 1)[None]  # (1, 8, L, K)
        again = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state  # (1, 8, D)
        model.engine_experts = None
    if not torch.allclose(own, again, rtol=0, atol=1e-4 * own.abs().max().item()):
        fail(f"--replay-routing: {given} weights its experts in a way that is not supported here.")


def replayed(model: Any, layer: int, router: Any, inputs: Any, output: Routed) -> Routed:
    """What a router returns with the engine's experts: their weights are the softmax of its own logits."""
    if model.engine_experts is None:
        return output
    logits, own_weights, own = output
    experts = model.engine_experts[:, :, layer].flatten(0, 1).to(own)  # (N, K)
    known = experts[:, :1] >= 0  # (N, 1)
    experts = torch.where(known, experts, own)  # (N, K)
    weights = logits.float().softmax(-1).gather(1, experts)  # (N, K)
    if getattr(router, "norm_topk_prob", True):  # Qwen's routers have this setting, the others always normalize
        weights = weights / weights.sum(1, keepdim=True)
    return logits, torch.where(known, weights.to(own_weights), own_weights), experts


def set_engine_experts(model: Any, batch: Batch, rows: Tensor, S: int) -> None:
    """Before the model reads the first S tokens of some rows: with --replay-routing, what it replays."""
    if not hasattr(model, "engine_experts"):
        return
    if not batch.experts.numel():
        fail("--replay-routing: this script trains on responses whose experts nobody reports. Leave it out.")
    # It stays until the next pass, for a backward pass that computes again.
    model.engine_experts = batch.experts[rows, :S] if len(rows) else None
