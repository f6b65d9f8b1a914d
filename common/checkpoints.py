"""Checkpoints of a run: Hugging Face folders with the optimizer beside the weights, whole or not at all."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from common.cli import first_line

import torch
from safetensors.torch import load_file

KEPT = 2  # the newest, and one more in case the newest is broken
CHECKSUMS = "checksums.json"
NO_MEMORY = ("not enough memory", "out of memory", "can't allocate")  # in the messages of torch and the system


def lacks_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY)


def checksum(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "blake2b").hexdigest()


def checkpoints(run_dir: Path) -> list[Path]:
    """The checkpoints of a run folder, oldest first."""
    return sorted(run_dir.glob("checkpoint-" + "[0-9]" * 6))


def load_newest(run_dir: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Weights and state of the newest whole checkpoint, on the CPU; a broken one is named and skipped."""
    for folder in reversed(checkpoints(run_dir)):
        try:
            for name, expected in json.loads((folder / CHECKSUMS).read_text()).items():
                if checksum(folder / name) != expected:
                    raise ValueError(f"{name} has changed since it was written")
            weights = load_file(folder / "model.safetensors")
            # Mapped from the disk: what is on a GPU, or larger than the memory, costs nothing until it is copied.
            return weights, torch.load(folder / "state.pt", map_location="cpu", mmap=True, weights_only=True)
        except Exception as error:
            if lacks_memory(error):
                raise
            print(f"skipping the broken checkpoint {folder}: {first_line(error)}", flush=True)
    return None


def save_checkpoint(folder: Path, model: Any, tokenizer: Any, state: dict[str, Any] | None = None) -> None:
    """Write `folder` so that a kill at any moment leaves all of it, or nothing new."""
    partial = folder.with_name("checkpoint-partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        model.save_pretrained(partial, max_shard_size="1TB")  # one file
        tokenizer.save_pretrained(partial)
        if state is not None:
            torch.save(state, partial / "state.pt")
        sums = {file.name: checksum(file) for file in partial.iterdir() if file.suffix in (".safetensors", ".pt")}
        (partial / CHECKSUMS).write_text(json.dumps(sums, indent=2) + "\n")
        for file in partial.iterdir():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def drop_old(run_dir: Path) -> None:
    """Keep the newest checkpoints alone."""
    for folder in checkpoints(run_dir)[:-KEPT]:
        shutil.rmtree(folder)
