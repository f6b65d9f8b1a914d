"""Make a Hugging Face folder of a sharded checkpoint, as `--sharded-checkpoints` writes them.

python -m tools.checkpoints runs/.../checkpoint-000100 FOLDER
"""

import json
import shutil
import sys
from pathlib import Path

from common.checkpoints import CHECKSUMS, PARTS
from common.cli import fail

import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save


def convert(source: Path, target: Path) -> None:
    """Write the whole weights of a sharded checkpoint, with its configuration and tokenizer, to a new folder."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(PARTS, "state.pt", CHECKSUMS))
    dcp_to_torch_save(source / PARTS, target / "whole.pt")
    weights = torch.load(target / "whole.pt", map_location="cpu", mmap=True, weights_only=True)["model"]
    if json.loads((target / "config.json").read_text()).get("tie_word_embeddings"):
        weights.pop("lm_head.weight", None)
    weights = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    (target / "whole.pt").unlink()


def main(arguments: list[str]) -> None:
    if len(arguments) != 2:
        fail("name a sharded checkpoint and a new folder: python -m tools.checkpoints CHECKPOINT FOLDER")
    source, target = map(Path, arguments)
    if not (source / PARTS).exists():
        fail(f"{source} is not a sharded checkpoint: name a checkpoint folder with a folder {PARTS}/ in it.")
    if target.exists():
        fail(f"{target} exists and is not overwritten: name a new folder.")
    convert(source, target)
    print(f"wrote {target}")


if __name__ == "__main__":
    main(sys.argv[1:])
