"""LoRA (2106.09685): W + α/r B A, with W frozen and B (r columns) 0 at the start.

peft adds the adapters to the model in place: its class stays the same, and code that trains the model's parameters
trains only the adapters. Only the learner has any: engines and checkpoints get what `named_weights` yields.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.cli import fail
from common.distributed import device, load_state, whole
from common.logprobs import computes_in_bf16
from common.settings import Settings

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

ADAPTER = "default"  # peft's name for a single adapter
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # its names for the files of an adapter


def add_adapters(model: Any, args: Settings) -> None:
    """Freeze the model and add adapters to linear layers, the same ones for the same seed.

    If the learner computes in bf16 it rounds these layers' weights anyway, so frozen ones are kept in bf16.
    """
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds

    targets = list(args.lora_targets) or "all-linear"  # all but the head
    config = LoraConfig(r=args.lora_rank, lora_alpha=args.lora_alpha, target_modules=targets)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(args.seed)
            inject_adapter_in_model(config, model, ADAPTER)
    except ValueError:
        linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
        layers = {name.rpartition(".")[2] for name in linear}
        fail(f"--lora-targets {' '.join(targets)}: this model's linear layers are {', '.join(sorted(layers))}.")
    if computes_in_bf16(device(), args):
        for name, module in model.named_modules():
            if name.endswith(".base_layer"):
                module.to(torch.bfloat16)


@torch.no_grad()
def named_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The model's own names, and its weights with the adapters added in fp32.

    A sharded model yields sharded tensors; `whole` gathers one.
    """
    for name, weight in model.named_parameters():
        if ".lora_A." in name or ".lora_B." in name:
            continue
        owner, _, own_name = name.rpartition(".")
        while owner.endswith(".base_layer"):  # more than one around a layer's experts, for each of their matrices
            owner = owner.removesuffix(".base_layer")
            layer = model.get_submodule(owner)
            if getattr(layer, "parameter_name", "weight") == own_name:
                weight = weight.float() + layer.get_delta_weight(ADAPTER)
        yield f"{owner}.{own_name}" if owner else own_name, weight


def whole_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """`named_weights`, gathered one at a time."""
    return ((name, whole(weight)) for name, weight in named_weights(model))


def save_adapter(folder: Path, model: Any, adapters: dict[str, Tensor]) -> None:
    """Write an adapter as peft and vLLM load it, from the result of `Adapters.state_dict`."""
    folder.mkdir(parents=True)
    config = model.peft_config[ADAPTER].to_dict() | {"base_model_name_or_path": model.name_or_path}
    config = {name: sorted(value) if isinstance(value, set) else value for name, value in config.items()}
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    names = {name: f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}" for name in adapters}
    save_file({names[name]: weight.cpu().contiguous() for name, weight in adapters.items()}, folder / WEIGHTS)


def base_of(folder: Path, given: str) -> str:
    """The name of the model that an adapter belongs to; `given` is how the user named it."""
    try:
        config = json.loads((folder / CONFIG).read_text())
        kind, base = config["peft_type"], config["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        fail(f"{given}: its {CONFIG} is damaged.")
    if kind != "LORA" or not (folder / WEIGHTS).is_file() or not isinstance(base, str):
        fail(f"{given} must be a LoRA adapter with its weights in {WEIGHTS} and its base model in {CONFIG}.")
    return base


def merged(model: Any, folder: Path) -> Any:
    """The base model with an adapter merged into its weights, all of which can be trained."""
    from peft import PeftModel, get_peft_model_state_dict

    adapted = PeftModel.from_pretrained(model, folder, local_files_only=True)
    with safe_open(folder / WEIGHTS, "pt") as file:  # peft ignores weights that do not fit
        unfit = get_peft_model_state_dict(adapted, save_embedding_layers=False).keys() ^ set(file.keys())
    if unfit:
        raise ValueError(f"{CONFIG} and {WEIGHTS} differ in {min(unfit)} and {len(unfit) - 1} others")
    return adapted.merge_and_unload().requires_grad_(True)


class Adapters:
    """The adapters of a model, for a checkpoint: merged weights alone are not enough to resume from."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def state_dict(self) -> dict[str, Tensor]:
        return {name: weight.detach() for name, weight in self.model.named_parameters() if weight.requires_grad}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        load_state(self.model, state)
