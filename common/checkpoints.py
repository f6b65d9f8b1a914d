"""Checkpoints of a run: Hugging Face folders with the optimizer beside the weights, whole or not at all.

With several processes the first one writes what a single process would write, so that a run can be resumed with
another number of them. Where weights and optimizer states do not fit its memory, `--sharded-checkpoints` has each
process write its own part with torch.distributed.checkpoint; `python -m tools.checkpoints` turns such a checkpoint into
a Hugging Face folder.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from common.cli import first_line, lacks_memory
from common.distributed import gather, load_state, rank, whole_state
from common.lora import named_weights

import torch
from safetensors.torch import load_file

KEPT = 2  # the newest, and one more in case the newest is broken
CHECKSUMS = "checksums.json"
PARTS = "parts"  # of a sharded checkpoint


def checksum(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "blake2b").hexdigest()


def checkpoints(run_dir: Path) -> list[Path]:
    """The checkpoints of a run folder, oldest first."""
    return sorted(run_dir.glob("checkpoint-" + "[0-9]" * 6))


def save_checkpoint(
    folder: Path, model: Any, tokenizer: Any, state: dict[str, Any] | None, objects: dict[str, Any], sharded: bool
) -> None:
    """Write `folder` so that a kill at any moment leaves all of it, or nothing new.

    `objects` have a `state_dict`; the optimizer is one of them. Without a `state` only the weights are saved.
    """
    partial = folder.with_name("checkpoint-partial")
    if rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)
    gather(None)  # wait until the old one is gone
    try:
        if sharded and state is not None:
            import torch.distributed.checkpoint as dcp
            from torch.distributed.checkpoint.state_dict import get_state_dict

            weights, moments = get_state_dict(model, objects["optimizer"])
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=partial / PARTS)
            objects = {name: thing for name, thing in objects.items() if name != "optimizer"}
            weights = {}
        else:
            buffers = {name for name, _ in model.named_buffers()}
            weights = {name: whole_state(weight) for name, weight in named_weights(model)}  # tied ones once
            weights |= {name: whole_state(b) for name, b in model.state_dict().items() if name in buffers}
        states = {name: whole_state(thing.state_dict()) for name, thing in objects.items()} if state is not None else {}
        if rank() == 0:
            write(partial, model, tokenizer, weights, None if state is None else state | states)
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
    except BaseException:
        if rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    gather(None)  # wait until it is there


def write(partial: Path, model: Any, tokenizer: Any, weights: dict[str, Any], state: dict[str, Any] | None) -> None:
    """Write the files of a checkpoint with their checksums, and flush them to disk."""
    if weights:
        model.save_pretrained(partial, state_dict=weights, max_shard_size="1TB")  # one file
    else:
        model.config.save_pretrained(partial)
        model.generation_config.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    if state is not None:
        torch.save(state, partial / "state.pt")
    files = [file for file in partial.rglob("*") if file.is_file()]
    sums = {str(file.relative_to(partial)): checksum(file) for file in files}
    (partial / CHECKSUMS).write_text(json.dumps(sums, indent=2) + "\n")
    for file in [*files, partial / CHECKSUMS]:
        with file.open("rb") as handle:
            os.fsync(handle.fileno())


def load_newest(run_dir: Path, model: Any, objects: dict[str, Any]) -> dict[str, Any] | None:
    """Restore the newest whole checkpoint, and return its state; a broken one is named and skipped."""
    for folder in reversed(checkpoints(run_dir)):
        try:
            for name, expected in json.loads((folder / CHECKSUMS).read_text()).items() if rank() == 0 else ():
                if checksum(folder / name) != expected:
                    raise ValueError(f"{name} has changed since it was written")
            # Mapped from the disk: what is on a GPU, or larger than the memory, costs nothing until it is copied.
            state = torch.load(folder / "state.pt", map_location="cpu", mmap=True, weights_only=True)
            weights = None if (folder / PARTS).exists() else load_file(folder / "model.safetensors")
            problem = ""
        except Exception as error:
            if lacks_memory(error):
                raise
            problem = first_line(error)
        if problem := next(filter(None, gather(problem)), ""):
            print(f"skipping the broken checkpoint {folder}: {problem}", flush=True)
            continue
        if weights is None:
            load_parts(folder / PARTS, model, objects["optimizer"])
        elif "adapters" not in objects:  # which go beside the weights that the run began with
            load_state(model, weights)
        for name, thing in objects.items():
            if name in state:
                load_state(thing, state.pop(name))
        return state
    return None


def load_parts(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Weights and moments of a sharded checkpoint, each process what it needs of them."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)


def drop_old(run_dir: Path) -> None:
    """Delete all but the newest checkpoints."""
    for folder in checkpoints(run_dir)[:-KEPT] if rank() == 0 else ():
        shutil.rmtree(folder)
