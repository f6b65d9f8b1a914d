"""Loading a causal language model and its tokenizer."""

import difflib
from pathlib import Path
from typing import Any

from common.cli import fail, first_line, flag, lacks_memory
from common.distributed import place
from common.experts import check_routers, replay_routing
from common.lora import CONFIG as ADAPTER_CONFIG
from common.lora import add_adapters, base_of, merged
from common.loss_scale import LossScale
from common.settings import ModelSettings, local_path
from worlds import MODELS

import torch

QUANTIZED = {"quantization_config", "compression_config"}
NAMES_CODE = ("fusion_config", "transformers_weights")


def adapter_folder(name: str) -> Path | None:
    """The local folder that a model's name refers to, if it holds an adapter."""
    local = None if name in MODELS else local_path(name)
    return local if local and (local / ADAPTER_CONFIG).is_file() else None


def model_path(name: str) -> str:
    """Where a model or an adapter's base is loaded from: an embedded one's folder, a local one, or the hub."""
    if adapter := adapter_folder(name):
        name = base_of(adapter, f"--model {name}")
    return str(MODELS[name].folder) if name in MODELS else name


def read_model(name: str, given: str, local: bool) -> tuple[Any, Any, dict[str, Any]]:
    """A model, its tokenizer, and what transformers reports on its weights; `given` is how the user named it."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # takes seconds to load
    from transformers.utils import logging

    logging.disable_progress_bar()
    where = {"trust_remote_code": False, "local_files_only": local}
    config = AutoConfig.from_pretrained(name, **where)
    if named := QUANTIZED & config.to_dict().keys() | QUANTIZED & config.get_text_config().to_dict().keys():
        fail(f"{given} is quantized ({min(named)}), and fp32 weights are needed: take the model it was made from.")
    # Kernels, files and patches that a config names, here or on the hub, are not used: transformers has defaults.
    config._attn_implementation = config._experts_implementation = None
    for name_in_config in NAMES_CODE:
        config.__dict__.pop(name_in_config, None)
    # No dropout: it would make the ratio noisy.
    for dropout in [key for key in config.to_dict() if "drop" in key]:
        setattr(config, dropout, 0.0)
    tokenizer = AutoTokenizer.from_pretrained(name, **where)
    model, loaded = AutoModelForCausalLM.from_pretrained(
        name, config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **where
    )
    return model, tokenizer, loaded


def load_model(args: ModelSettings, placed: bool = True, setting: str = "model") -> tuple[Any, Any]:
    """The model that a setting names, with fp32 master weights, frozen below adapters with LoRA, and its tokenizer.

    An adapter is added to the weights of its base.

    It is on the accelerator if there is one; with several processes, each holds a shard. A module that is built around
    the model takes it unplaced, and is then placed as a whole.
    Only safetensors are read, no code that comes with a model is run, and for a local folder nothing is looked up
    elsewhere. Two assumptions of the log-probs are checked: attention is causal, and the logits are the head's.
    """
    given = f"{flag(setting)} {getattr(args, setting)}"
    name = model_path(getattr(args, setting))
    local = local_path(name)
    if local and not (local / "config.json").is_file():
        near = difflib.get_close_matches(local.name, [path.name for path in local.parent.glob("*/")], 1)
        fail(
            f"{given}: no such model folder (it must hold a config.json)."
            + (f" Did you mean {local.parent / near[0]}?" if near and near[0] != local.name else "")
        )
    try:
        model, tokenizer, loaded = read_model(name, given, local is not None)
        if adapter := adapter_folder(getattr(args, setting)):
            model = merged(model, adapter)
    except Exception as error:  # each kind of failure has its own exception
        if lacks_memory(error):
            raise
        fail(f"{given} cannot be loaded, its files are missing, incomplete or corrupt: {first_line(error)}")
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if model.get_expanded_tied_weights_keys(all_submodels=True) and head and head.weight is not embedding.weight:
        fail(f"{given} has a head of its own: set tie_word_embeddings to false in its config.json.")
    if absent := sorted(loaded["missing_keys"]):
        fail(f"{given}: its files hold no weights for {absent[0]} and {len(absent) - 1} others.")
    if tokenizer.eos_token_id is None:
        fail(f"{given}: the tokenizer has no end-of-sequence token, so no response could ever end.")
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        fail(f"{given} holds weights that are not finite: take an earlier checkpoint.")
    check_log_probs(given, model)
    if setting == "model" and (getattr(args, "replay_routing", False) or hasattr(args, "router_floor")):
        check_routers(given, model)
    if setting == "model" and getattr(args, "replay_routing", False):
        replay_routing(model)
    if getattr(args, "lora_rank", 0):  # like the next settings, only where there is a learner
        add_adapters(model, args)
    if getattr(args, "learner_precision", "") == "fp16":
        model.loss_scale = LossScale(model)
    if getattr(args, "gradient_checkpointing", False):
        model.gradient_checkpointing_enable()
        model.train()  # transformers recomputes activations in this mode only
    return place(model) if placed else model, tokenizer


@torch.no_grad()
def check_log_probs(given: str, model: Any) -> None:
    """End the program if log-probs computed from the body and the head would not be the model's own."""
    tokens = torch.arange(2, 10).repeat(2, 1) % model.config.get_text_config().vocab_size  # (2, 8)
    tokens[1, -1] = 0  # the rows differ in their last token
    try:
        logits = model(input_ids=tokens, use_cache=False).logits  # (2, 8, V)
        hidden = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state  # (2, 8, D)
        from_head = model.get_output_embeddings()(hidden)  # (2, 8, V)
    except Exception as error:
        fail(f"{given} is not built as a causal language model is in transformers: {first_line(error)}")
    rounding = 1e-4 * logits.abs().max().item()
    if not torch.allclose(logits[0, :-1], logits[1, :-1], rtol=0, atol=rounding):
        fail(f"{given} is not causal: what it predicts depends on later tokens.")
    if not torch.allclose(logits, from_head, rtol=0, atol=rounding / 100):
        fail(f"{given} changes its logits after the head (scaled or capped), which is not supported here.")


def eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a response."""
    ids = model.generation_config.eos_token_id
    ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
    return sorted({*ids, tokenizer.eos_token_id})


def context_length(model: Any) -> int:
    """The longest prompt plus response, in tokens, that the model can read."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", 1 << 30)  # recurrent ones have no limit
