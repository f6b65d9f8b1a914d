"""Several processes, started by torchrun, each with its own device. With a single process nothing here has an effect.

Every process samples the same problems, holds the whole rollout batch as token ids, and computes the same rewards,
advantages and weights. It generates, verifies, scores and trains on its shard of the rows; results are gathered and
gradients are summed, so the outcome does not depend on the number of processes. Parameters, gradients and optimizer
states are sharded layer by layer (FSDP2); a whole tensor exists only while it is used, sent or saved.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import MethodType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

TIMEOUT = timedelta(minutes=30)  # to wait for another process, which may generate or evaluate for longer
GRACE_SECONDS = 10  # a failed process waits this long for the first one to report why
T = TypeVar("T")
store: dist.Store | None = None  # shared by all processes, kept by torchrun


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_world_size() -> int:
    """The processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def start() -> bool:
    """Join the other processes, and return whether this call did so. Only the first process prints."""
    global store
    if world_size() == 1 or dist.is_initialized():
        return False
    if rank() > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, number, count = next(iter(dist.rendezvous("env://", timeout=TIMEOUT)))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=TIMEOUT)
    return True


def close() -> None:
    """Leave the other processes."""
    if dist.is_initialized() and world_size() > 1:
        # Gloo's threads hold tensors for a moment after a collective, and abort Python if it ends in that time:
        # https://github.com/pytorch/pytorch/pull/179291
        time.sleep(0.5)
        dist.destroy_process_group()


def may_report() -> bool:
    """Whether this process may report why the run ends: only the first to ask may."""
    if world_size() == 1:
        return True
    if store is None:  # torchrun ends all others once one has ended, even before the first one has reported
        time.sleep(GRACE_SECONDS if rank() > 0 else 0)
        return True
    if threading.current_thread() is threading.main_thread():  # torchrun's signal must not cut the message off
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        return store.add("failed", 1) == 1
    except RuntimeError:  # torchrun is gone
        return True


def another_failed() -> bool:
    """Whether any process has reported why the run ends."""
    try:
        return store is not None and store.check(["failed"])
    except RuntimeError:
        return True


# Shards and sums


def shard(count: int) -> slice:
    """This process's shard of `count` things."""
    return slice(count * rank() // world_size(), count * (rank() + 1) // world_size())


def gather(value: T) -> list[T]:
    """The values of all processes, in rank order."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def sum_over_processes(tensor: Tensor) -> Tensor:
    """The sum of the processes' tensors, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


# Sharded models


def device() -> torch.device:
    """The accelerator of this process (CUDA, or MPS on a Mac), or its CPU."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


def has_bf16(device: torch.device) -> bool:
    """Whether a device is a GPU made for bf16: NVIDIA's from compute capability 8.0; a T4 (7.5) only emulates it."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def place(model: Any) -> Any:
    """Move a model to this process's device; with several processes, shard it layer by layer. In place."""
    if world_size() == 1:
        return model.to(device())
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    body = model.base_model  # used through `forward` below
    mesh = init_device_mesh(device().type, (world_size(),))
    layers = [module for module in body.modules() if type(module).__name__ in body._no_split_modules]
    for module in [*layers, model]:  # embedding and head go with the whole model, as tied weights require
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
        module.set_gradient_divide_factor(1.0)  # sums, not means
        module.set_force_sum_reduction_for_comms(True)  # gloo has no other way to divide by 1
    model.run = MethodType(lambda self, function, *args: function(self, *args), model)
    register_fsdp_forward_method(model, "run")
    return model


def forward(function: Callable[..., T], model: Any, *args: Any) -> T:
    """`function(model, *args)` with the model's parameters gathered while it runs, and again for its gradient."""
    return model.run(function, *args) if world_size() > 1 else function(model, *args)


def local(tensor: Tensor) -> Tensor:
    """This process's shard of a sharded tensor, a DTensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor as a whole. All processes must call this."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def like(tensor: Tensor, example: Tensor) -> Tensor:
    """A whole tensor, sharded like the example."""
    if not hasattr(example, "device_mesh"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(example.device), example.device_mesh, example.placements, src_data_rank=None)


def whole_state(state: Any) -> Any:
    """A state dict with whole tensors on the CPU of the first process; the others get None in their place."""

    def collect(tensor: Tensor) -> Tensor | None:
        tensor = whole(tensor)
        return tensor.cpu() if rank() == 0 else None

    return tree_map_only(Tensor, collect, state)


def load_state(target: Any, state: Any) -> None:
    """Load a state dict of whole tensors into a module, an optimizer, or anything with a `load_state_dict`."""
    if isinstance(target, torch.nn.Module):
        own = target.state_dict()
        target.load_state_dict({name: like(tensor, own[name]) for name, tensor in state.items()}, strict=False)
    elif isinstance(target, torch.optim.Optimizer):
        parameters = [parameter for group in target.param_groups for parameter in group["params"]]
        moments = {
            i: {name: like(value, parameters[i]) if value.ndim else value for name, value in of_one.items()}
            for i, of_one in state["state"].items()
        }
        target.load_state_dict(state | {"state": moments})
    else:
        target.load_state_dict(state)
