"""Run one function on cases and return its results as plain numbers. Its process holds no answers.

It does not judge the results. A result without numbers has a reason under "problem", in words, and never passes.
"""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

try:
    from tiny import run_loop
except ModuleNotFoundError:  # in this repository, outside the sandbox
    from notebooks.exercises.tiny import run_loop

# For these, the gradient with respect to the first input is compared instead of the value: two forms of a loss with
# the same gradient train the same model. For the KL both are compared.
GRADIENT = {"policy_loss", "value_loss", "kl_penalty"}
# What a student's file may import, besides the other files of the handout that students write.
IMPORTABLE = (
    "__future__", "abc", "collections", "collections.abc", "contextlib", "copy", "dataclasses", "enum", "fractions",
    "functools", "itertools", "math", "numbers", "numpy", "operator", "random", "re", "statistics", "string", "torch",
    "torch.nn.functional", "types", "typing", "typing_extensions", "warnings",
)  # fmt: skip
PARTS = {  # names of the results of functions that return several
    "policy_loss": (dict, "it must return the per-token loss and a dict of metrics: `return loss, {}`."),
    "compute_advantages": (Tensor, "it must return advantages and returns, both (B, T)."),
    "collate": (Tensor, "it must return two tensors: tokens (B, S) and log-probs (B, T)."),
    "minibatches": (Tensor, "it must return a list with a tensor of row numbers for each minibatch."),
}


class WrongResult(Exception):
    """A function's result cannot be compared; the message says why."""


def tensor(values: Any) -> Any:
    """Plain data {"float64": nested lists} as a tensor; numbers stay as they are."""
    if not isinstance(values, dict):
        return values
    ((dtype, numbers),) = values.items()
    return torch.tensor(numbers, dtype=getattr(torch, dtype))


def plain(value: Tensor) -> dict[str, Any]:
    """A tensor as plain data: its numbers, shape and type."""
    dtype = str(value.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(value.shape), "values": value.detach().double().flatten().tolist()}


def run_case(module: ModuleType, function: str, case: dict[str, Any]) -> dict[str, Any]:
    """A function's result for a case: {"outputs": [plain tensors]}, the values and then the gradient."""
    if "world" in case:
        return {"outputs": [plain(part) for part in run_world(getattr(module, function), case)]}
    kind = case.get("kind", function)
    inputs = [tensor(x) for x in case["inputs"]]
    extra = [tuple(tensor(x) for x in case["top"])] if "top" in case else []
    args = [SimpleNamespace(**case["args"])] if "args" in case else []
    if kind in GRADIENT:
        leaf = inputs[0].requires_grad_()
        inputs[0] = leaf.clone()  # in the training loop it comes from the model, so it is not a leaf of the graph
    before = [x.clone() if isinstance(x, Tensor) else x for x in inputs]
    result = getattr(module, function)(*inputs, *args, *extra)
    for i, (now, was) in enumerate(zip(inputs, before, strict=True)):
        if isinstance(was, Tensor) and not torch.equal(now, was):
            raise WrongResult(f"it changes its input number {i + 1} in place. Create a new tensor instead.")
    parts = [result]
    if result is not None and case.get("parts", 1) > 1:
        second, message = PARTS[kind]
        if not isinstance(result, tuple | list) or len(result) != case["parts"] or not isinstance(result[1], second):
            raise WrongResult(message)
        parts = [result[0]] if second is dict else list(result)
    for part in parts:
        if part is None:
            raise WrongResult("it returns nothing: a `return` is missing.")
        if type(part).__module__ == "numpy":
            raise WrongResult("it returns a NumPy array, which has no gradient. Compute with torch.")
        if not isinstance(part, Tensor):
            raise WrongResult(f"it returns a {type(part).__name__}, not a tensor.")
    if kind not in GRADIENT:
        return {
            "outputs": [plain(part * tensor(case["shown"])) for part in parts]
            if "shown" in case
            else [plain(p) for p in parts]
        }
    (loss,) = parts
    weights = tensor(case["weights"])
    if loss.ndim == 0:
        raise WrongResult("it returns a scalar, the averaged loss. Return the loss of each token, (B, T).")
    if loss.shape != weights.shape:
        raise WrongResult(f"it returns the shape {tuple(loss.shape)}, not {tuple(weights.shape)}.")
    if not loss.requires_grad:
        raise WrongResult("the loss has no gradient: every path from its first input is detached.")
    (slope,) = torch.autograd.grad((weights * loss).sum(), leaf, allow_unused=True)
    if slope is None:
        raise WrongResult("the loss has no gradient with respect to its first input.")
    value = [plain(loss * tensor(case["shown"]))] if kind == "kl_penalty" else []
    return {"outputs": [*value, plain(slope) | {"dtype": str(loss.dtype).removeprefix("torch.")}]}


def run_world(function: Any, case: dict[str, Any]) -> list[Tensor]:
    """What a loop returns in the world of tiny.py, after the gradient of each parameter in each update."""
    weights, args = {name: tensor(x) for name, x in case["world"].items()}, SimpleNamespace(**case["args"])
    wanted = args.steps * args.update_epochs * args.num_minibatches
    curve, gradients = run_loop(function, weights, case["seed"], args)
    updates = len(gradients) // len(weights)
    if updates != wanted:
        raise WrongResult(f"it makes {updates} updates, not steps * update_epochs * num_minibatches = {wanted}.")
    if not isinstance(curve, Tensor):
        raise WrongResult("it must return a tensor (steps,) with the mean reward of each step.")
    return [*gradients, curve]


class OwnFiles(MetaPathFinder, Loader):
    """Imports a student's files from memory, so that one file can use another."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in self.sources else None

    def exec_module(self, module: ModuleType) -> None:
        source = self.sources[module.__name__]
        exec(compile(source, f"{module.__name__}.py", "exec"), module.__dict__)


def run_files(sources: dict[str, str], script: str, function: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`run` for a function in a student's files, given as text by script."""
    sys.meta_path.insert(0, OwnFiles(sources))
    try:
        return run(importlib.import_module(script), function, cases)
    except NotImplementedError:
        return [{"problem": "it is not written yet."}]
    except (Exception, SystemExit) as error:
        return [{"problem": ending("the file", error)}]
    finally:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, OwnFiles)]
        for name in sources:
            sys.modules.pop(name, None)


def ending(subject: str, error: BaseException) -> str:
    """A sentence that names the error with which a file or a function ended."""
    if isinstance(error, ModuleNotFoundError):
        top = sorted({name.split(".")[0] for name in IMPORTABLE} - {"__future__", "typing_extensions"})
        return f"{subject} imports {error.name}: only your own files and {', '.join(top)} can be imported."
    if isinstance(error, AttributeError) and isinstance(error.obj, SimpleNamespace):
        return f"args has no setting `{error.name}`: use the settings of Args in the same file."
    lines = str(error).strip().splitlines()
    if lines and "numpy()" in lines[0]:
        return "it computes with NumPy, which has no gradient. Compute with torch."
    return f"{subject} ends with {type(error).__name__}: {lines[0] if lines else 'no reason given'}"[:300]


def run(module: ModuleType, function: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each case {"outputs": ...}, or {"problem": why there are none}."""
    results = []
    for case in cases:
        try:
            results.append(run_case(module, function, case))
        except WrongResult as problem:
            results.append({"problem": str(problem)})
        except NotImplementedError:
            results.append({"problem": "it is not written yet."})
        except (Exception, SystemExit) as error:
            results.append({"problem": ending("it", error)})
    return results
