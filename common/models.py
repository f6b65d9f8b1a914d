"""Loading a causal language model and its tokenizer, and the distribution that it puts on the next token."""

from pathlib import Path
from typing import Any

from common.cli import fail, first_line

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

logging.disable_progress_bar()

EMBEDDED_MODEL = Path(__file__).parent.parent / "models" / "arithmetic"


def model_path(name: str) -> str:
    """Where a model lies: "arithmetic" is the embedded one, all else a local folder or a hub name."""
    return str(EMBEDDED_MODEL) if name == "arithmetic" else name


def load_model(args: Any) -> tuple[Any, Any]:
    """The learner, with fp32 master weights on the GPU if there is one, and its tokenizer.

    Only safetensors are read, and no code that comes with a model is run.
    """
    name = model_path(args.model)
    if (name.startswith((".", "/", "~")) or Path(name).exists()) and not (Path(name) / "config.json").is_file():
        fail(f"--model {name}: no such model folder (it must hold a config.json).")
    try:
        config = AutoConfig.from_pretrained(name)
        # No dropout: the ratio would be noise with it.
        for setting in [key for key in config.to_dict() if "drop" in key or "pdrop" in key]:
            setattr(config, setting, 0.0)
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, config=config, dtype=torch.float32, use_safetensors=True)
    except Exception as error:  # every way in which loading fails has its own exception
        fail(
            f"--model {args.model} cannot be loaded, its files are missing, incomplete or corrupt: {first_line(error)}"
        )
    if getattr(config, "final_logit_softcapping", None) or getattr(config, "logit_scale", None):
        fail(f"--model {args.model} rescales its logits after the head, which is not supported here.")
    if tokenizer.eos_token_id is None:
        fail(f"--model {args.model}: the tokenizer has no end-of-sequence token, so no response could ever end.")
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        fail(f"--model {args.model} holds weights that are not finite: take an earlier checkpoint.")
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
        model.train()  # transformers checkpoints in this mode only
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    return model, tokenizer


def eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a response."""
    ids = model.generation_config.eos_token_id
    ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
    return sorted({*ids, tokenizer.eos_token_id})


def context_length(model: Any) -> int:
    """The longest prompt plus response, in tokens, that the model can read."""
    return model.config.get_text_config().max_position_embeddings


def distribution(hidden: Tensor, head: Any, temperature: float, fp32: bool) -> Tensor:
    """Log-probs (N, V) of the next token from hidden states (N, D); the softmax is in fp32.

    Logits are divided by the sampling temperature: the policy is what is sampled. `fp32` also runs
    the head itself in fp32, which brings sampler and learner closer where they compute in bf16.
    """
    if fp32:
        with torch.autocast(hidden.device.type, enabled=False):
            bias = None if head.bias is None else head.bias.float()
            logits = F.linear(hidden.float(), head.weight.float(), bias)  # (N, V)
    else:
        logits = head(hidden)  # (N, V)
    return (logits.float() / temperature).log_softmax(-1)
