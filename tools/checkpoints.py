"""Turn a sharded checkpoint, as `--sharded-checkpoints` writes it, into a Hugging Face folder.

python -m tools.checkpoints runs/.../checkpoint-000100 FOLDER
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from common.checkpoints import CHECKSUMS, MODEL, PARTS, read_shards, verify
from common.cli import fail, first_line, say

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion


def convert(source: Path, target: Path) -> None:
    """Write the whole weights of a sharded checkpoint, with its configuration and tokenizer, to a new folder."""

    def whole(name: str, kept: Any) -> Tensor | None:
        return torch.empty(kept.size, dtype=kept.properties.dtype) if name.startswith(MODEL) else None

    weights = read_shards(source / PARTS, whole)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(PARTS, "state.pt", CHECKSUMS))
    weights = {name.removeprefix(MODEL): weight for name, weight in weights.items()}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))
    # In a Hugging Face folder, each expert's matrices have their own names.
    weights = {name: weight.contiguous() for name, weight in revert_weight_conversion(model, weights).items()}
    save_file(weights, target / "model.safetensors", {"format": "pt"})


def main(arguments: list[str]) -> None:
    if len(arguments) != 2:
        fail("name a sharded checkpoint and a new folder: python -m tools.checkpoints CHECKPOINT FOLDER")
    source, target = map(Path, arguments)
    if not (source / PARTS).exists():
        fail(f"{source} is not a sharded checkpoint: name a checkpoint folder with a folder {PARTS}/ in it.")
    if target.exists():
        fail(f"{target} exists and is not overwritten: name a new folder.")
    try:
        verify(source)
        convert(source, target)
    except Exception as error:  # safetensors raises its own
        fail(f"{source} is damaged, or cannot be written to {target}: {first_line(error)}.")
    say(f"wrote {target}")


if __name__ == "__main__":
    main(sys.argv[1:])
