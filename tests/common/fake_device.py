"""A fake device for machines without a GPU: its tensors compute on the CPU, but never mix with CPU tensors.

`run` runs a script as on a GPU. The run fails if an operation mixes a tensor on the device with one on the CPU, other
than a scalar, which a GPU also allows. It needs its own process.
"""

import os
from typing import Any

import torch
import tyro
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_iter, tree_map
from transformers import PreTrainedModel

DEVICE = torch.device("privateuseone", 0)  # torch's placeholder for custom devices
MOVES = {"aten::_to_copy", "aten::copy_", "aten::_copy_from"}
# Indices may be on the CPU.
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class Module(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


class OnDevice(Tensor):
    """A tensor that claims to be on DEVICE; its numbers are those of `inner`, on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnDevice":
        return Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=DEVICE
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"):
            return operator.decompose(*args, **kwargs)
        name = operator._schema.name
        if name not in MOVES:
            for tensor in tree_iter(args[:1] if name in INDEXING else (args, kwargs)):
                if isinstance(tensor, Tensor) and not isinstance(tensor, cls) and tensor.ndim > 0:
                    raise RuntimeError(f"{name}: tensors on the device and on the CPU")
        stays = True
        if kwargs.get("device") is not None:
            stays = torch.device(kwargs["device"]).type == DEVICE.type
            kwargs["device"] = torch.device("cpu")
        result = operator(*tree_map(unwrapped, args), **tree_map(unwrapped, kwargs))
        if operator._schema.is_mutable:  # in-place operations return the tensor that they changed
            if "out" in kwargs:
                return kwargs["out"]
            if isinstance(result, Tensor):
                return args[0]
        return tree_map(lambda x: cls(x) if isinstance(x, Tensor) else x, result) if stays else result


def unwrapped(value: Any) -> Any:
    return value.inner if isinstance(value, OnDevice) else value


def empty(size: list[int], dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return OnDevice(torch.empty(size, dtype=dtype))


def empty_strided(size: list[int], stride: list[int], dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return OnDevice(torch.empty_strided(size, stride, dtype=dtype))


def copy(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    unwrapped(target).copy_(unwrapped(source))
    return target


def run(name: str, flags: list[str], log: str, evaluates: bool) -> None:
    """Run the script `name` with DEVICE as its device; what it prints goes to the file `log`.

    `evaluates` says whether to run the evaluations.
    """
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    backend_registration._setup_privateuseone_for_python_backend("fake", backend_module=Module())
    kernels = torch.library.Library("aten", "IMPL")
    for operator, kernel in [("empty.memory_format", empty), ("empty_strided", empty_strided), ("_copy_from", copy)]:
        kernels.impl(operator, kernel, "PrivateUse1")
    torch.__future__.set_swap_module_params_on_conversion(True)
    to_list = Tensor.tolist
    Tensor.tolist = lambda tensor: to_list(unwrapped(tensor))  # torch refuses to convert subclasses

    # Run experts one by one, as views of the weights; in inference mode these tensors do not allow views.
    PreTrainedModel.get_correct_experts_implementation = lambda *_, **__: "eager"
    torch.inference_mode = torch.no_grad
    torch.accelerator.synchronize = lambda: None
    save = torch.save  # reads a tensor's memory, which these do not have
    torch.save = lambda value, *more, **named: save(tree_map(unwrapped, value), *more, **named)

    from common import distributed
    from common.run import Run
    from tools import plots
    from tools.scripts import load

    plots.draw_curves = lambda *_: None  # drawing takes a second
    if not evaluates:
        Run.evaluate = Run.summarize = lambda *_: None

    assert distributed.device().type == "fake"
    script = load(name)
    script.main(tyro.cli(script.Args, args=flags))
