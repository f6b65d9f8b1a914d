"""Checkpoints of a run: Hugging Face folders with the optimizer's state, each complete or absent.

With several processes, the first one writes what a single process would write, so that a run can be resumed with a
different number. If weights and optimizer states do not fit its memory, `--sharded-checkpoints` has each process
write its own rows of every tensor, with torch.distributed.checkpoint; `python -m tools.checkpoints` turns such
a checkpoint into a Hugging Face folder. A checkpoint may come from anyone, so no pickle in it is loaded.
"""

import json
import shutil
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.cli import fail, first_line, lacks_memory, say
from common.distributed import gather, load_state, rank, whole_state, world_size
from common.folders import checksum, flush
from common.lora import named_weights, save_adapter

import torch
from safetensors.torch import load_file
from torch import Tensor

warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process needs none of it to write shards
CHECKSUMS = "checksums.json"
CARD = "README.md"
MASTER = "master_weights"  # in the state, if the weights' file is in another precision
ADAPTER = "adapter"  # folder of what --lora-rank trained; the weights outside it are merged
PARTS = "parts"  # folder of a sharded checkpoint
MODEL = "model."  # prefix of weights' names in it; moments have the parameter's number instead


def checkpoints(run_dir: Path) -> list[Path]:
    """The checkpoints of a run folder, oldest first."""
    return sorted(run_dir.glob("checkpoint-" + "[0-9]" * 6))


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("checkpoint-"))


def save_checkpoint(
    folder: Path,
    model: Any,
    tokenizer: Any,
    state: dict[str, Any] | None,
    objects: dict[str, Any],
    sharded: bool,
    card: str,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write `folder` so that a kill at any moment leaves either all of it or nothing new.

    `objects` have a `state_dict`; the optimizer is one of them. Without `state` and objects only weights are saved.
    Weights in a `dtype` other than fp32 are for use elsewhere: the state then holds them in fp32, to resume from.
    """
    partial = folder.with_name("checkpoint-partial")
    if rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)
    gather(None)  # wait until the old one is gone
    try:
        buffers = {name for name, _ in model.named_buffers()}
        weights = dict(named_weights(model))  # tied ones once
        weights |= {name: buffer for name, buffer in model.state_dict().items() if name in buffers}
        if sharded:
            save_shards(partial / PARTS, weights, objects["optimizer"])
            weights, objects = {}, {name: thing for name, thing in objects.items() if name != "optimizer"}
        weights = whole_state(weights)
        states = {name: whole_state(thing.state_dict()) for name, thing in objects.items()}
        if rank() == 0:
            if dtype != torch.float32:
                states |= {MASTER: weights} if state is not None and "adapters" not in states else {}
                weights = {name: weight.to(dtype) for name, weight in weights.items()}
            write(partial, model, tokenizer, weights, None if state is None else state | states, card)
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
    except BaseException:
        if rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    gather(None)  # wait until it is there


def write(
    partial: Path, model: Any, tokenizer: Any, weights: dict[str, Any], state: dict[str, Any] | None, card: str
) -> None:
    """Write everything to disk: model, tokenizer, state, checksums, and the card, which later evaluations update."""
    if weights:
        model.save_pretrained(partial, state_dict=weights, max_shard_size="1TB")  # one file
        config = json.loads((partial / "config.json").read_text())  # transformers writes the learner's dtype
        config["dtype"] = str(next(iter(weights.values())).dtype).removeprefix("torch.")
        (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    else:
        model.config.save_pretrained(partial)
        model.generation_config.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    if state is not None:
        torch.save(state, partial / "state.pt")
        if "adapters" in state:
            save_adapter(partial / ADAPTER, model, state["adapters"])
    files = [file for file in partial.rglob("*") if file.is_file()]
    sums = {str(file.relative_to(partial)): checksum(file) for file in files}
    (partial / CHECKSUMS).write_text(json.dumps(sums, indent=2) + "\n")
    (partial / CARD).write_text(card, encoding="utf-8")
    for file in [*files, partial / CHECKSUMS, partial / CARD]:
        flush(file)


def verify(folder: Path) -> None:
    """Raise ValueError if a file has changed since it was written, or has no checksum though `--resume` reads it."""
    sums = dict(json.loads((folder / CHECKSUMS).read_text()))
    read = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.suffix in (".pt", ".safetensors")}
    for name in sorted(read | sums.keys()):
        if name not in sums:
            raise ValueError(f"{name} has no checksum")
        if checksum(folder / name) != sums[name]:
            raise ValueError(f"{name} has changed since it was written")


def save_shards(folder: Path, weights: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Write this process's rows of weights and moments."""
    import torch.distributed.checkpoint as dcp  # takes seconds

    moments = optimizer.state_dict()["state"]
    tensors = {f"{MODEL}{name}": weight for name, weight in weights.items()}
    tensors |= {f"{i}.{name}": value for i, of_one in moments.items() for name, value in of_one.items()}
    writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
    dcp.save(tensors, storage_writer=writer, no_dist=world_size() == 1)


def read_shards(folder: Path, target: Callable[[str, Any], Tensor | None]) -> dict[str, Tensor]:
    """Read the files of `save_shards`, written by any number of processes; refuses any other file.

    Each tensor is read into what `target` returns for its name and `TensorStorageMetadata`, unless that is None.
    """
    import torch.distributed.checkpoint as dcp

    files = list(folder.iterdir())
    if not files or any(file.suffix != ".safetensors" for file in files):
        fail(f"{folder} must hold safetensors and nothing else. Pickles are not read, because they can run code.")
    reader = dcp.HuggingFaceStorageReader(str(folder))
    found = reader.read_metadata().state_dict_metadata.items()
    tensors = {name: into for name, kept in found if (into := target(name, kept)) is not None}
    dcp.load(tensors, storage_reader=reader, no_dist=world_size() == 1)
    return tensors


def load_shards(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Load weights and moments; each process reads the rows that it holds."""
    weights, moments = model.state_dict(), defaultdict(dict)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def target(key: str, kept: Any) -> Tensor:
        of, _, name = key.partition(".")
        if key.startswith(MODEL):
            return weights[name]
        moments[int(of)][name] = torch.zeros_like(parameters[int(of)]) if kept.size else torch.zeros(())
        return moments[int(of)][name]

    read_shards(folder, target)
    optimizer.load_state_dict(optimizer.state_dict() | {"state": dict(moments)})


def read_weights(folder: Path, model: Any) -> dict[str, Tensor]:
    """The weights of a Hugging Face folder, under the model's own names."""
    found = load_file(folder / "model.safetensors")
    if found.keys() <= model.state_dict().keys():
        return found
    # The file has each expert's matrices separately; the model has those of a layer in one tensor.
    from transformers import AutoModelForCausalLM

    # Uses the configuration that was checked before: one in a checkpoint may come from anyone.
    safe = {"config": model.config, "use_safetensors": True, "local_files_only": True}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **safe).state_dict()


def load_newest(run_dir: Path, model: Any, objects: dict[str, Any]) -> dict[str, Any] | None:
    """Restore the newest complete checkpoint, and return its state; broken ones are reported and skipped."""
    for folder in reversed(checkpoints(run_dir)):
        try:
            if rank() == 0:
                verify(folder)
            # Mapped from the disk, so tensors for a GPU, or larger than memory, cost nothing until they are copied.
            state = torch.load(folder / "state.pt", map_location="cpu", mmap=True, weights_only=True)
            parts = folder / PARTS
            weights = {} if parts.exists() else state.pop(MASTER, None) or read_weights(folder, model)
            problem = ""
        except Exception as error:
            if lacks_memory(error):
                raise
            problem = first_line(error)
        if problem := next(filter(None, gather(problem)), ""):
            say(f"skipping the broken checkpoint {folder}: {problem}")
            continue
        try:
            if type(state.get("step")) is not int:
                raise ValueError("it names no step")
            if parts.exists():
                load_shards(parts, model, objects["optimizer"])
            elif "adapters" not in objects:  # adapters belong to the weights that the run began with
                load_state(model, weights)
            for name, thing in objects.items():
                if name in state:
                    load_state(thing, state.pop(name))
        except Exception as error:  # the checksums match, so something else wrote it
            if lacks_memory(error):
                raise
            fail(f"{folder} is not a checkpoint of this model: {first_line(error)}.")
        return state
    return None


def drop_old(run_dir: Path, step: int, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints up to a step; later ones are broken and not counted."""
    old = [folder for folder in checkpoints(run_dir) if step_of(folder) <= step][:-keep]
    for folder in old if rank() == 0 else ():
        shutil.rmtree(folder)
