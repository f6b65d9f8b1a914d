"""LoRA (2106.09685): W + α/r B A, with W frozen and B, of r columns, 0 at the start.

peft puts the adapters into the model in place: its class stays, and everything that takes a model's parameters trains
the adapters alone. Outside the learner there are none: engines and checkpoints get what `named_weights` yields.
"""

from collections.abc import Iterator
from typing import Any

from common.distributed import device, load_state, whole
from common.logprobs import computes_in_bf16
from common.settings import Settings

import torch
from torch import Tensor

ADAPTER = "default"  # peft's name for the only one


def add_adapters(model: Any, args: Settings) -> None:
    """Freeze the model and put adapters beside every linear layer but the head, the same ones for the same seed.

    Where the learner computes in bf16 it rounds these layers' weights anyway, so frozen ones are kept in bf16.
    """
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds

    config = LoraConfig(r=args.lora_rank, lora_alpha=args.lora_alpha, target_modules="all-linear")
    with torch.random.fork_rng():
        torch.manual_seed(args.seed)
        inject_adapter_in_model(config, model, ADAPTER)
    if computes_in_bf16(device(), args):
        for name, module in model.named_modules():
            if name.endswith(".base_layer"):
                module.to(torch.bfloat16)


@torch.no_grad()
def named_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Names and weights as the model has them without adapters, these added in fp32 to what they stand beside.

    A sharded model's are sharded; `whole` gathers one.
    """
    for name, weight in model.named_parameters():
        owner, _, own_name = name.rpartition(".base_layer.")
        if owner:
            if own_name == "weight":
                weight = weight.float() + model.get_submodule(owner).get_delta_weight(ADAPTER)
            yield f"{owner}.{own_name}", weight
        elif ".lora_A." not in name and ".lora_B." not in name:
            yield name, weight


def whole_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """`named_weights`, each whole, one at a time."""
    return ((name, whole(weight)) for name, weight in named_weights(model))


class Adapters:
    """The adapters of a model, for a checkpoint: its merged weights alone could not be resumed from."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def state_dict(self) -> dict[str, Tensor]:
        return {name: weight.detach() for name, weight in self.model.named_parameters() if weight.requires_grad}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        load_state(self.model, state)
