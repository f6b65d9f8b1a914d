"""The checks of the exercises: `pytest` in this folder says of each function what is wrong with it, and why.

There is no solution here. `answers.json` holds, for each function, a few inputs, what comes out of the right function,
and what comes out of functions with a known mistake: so the check can name the mistake.
"""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

HERE = Path(__file__).parent
ANSWERS = HERE / "answers.json"


def load(path: Path) -> ModuleType:
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensor(values: Any) -> Tensor:
    """Numbers as float64, truth values as a mask."""
    made = torch.tensor(values)
    return made if made.dtype == torch.bool else made.double()


def output(module: ModuleType, function: str, case: dict[str, Any]) -> Tensor:
    """What a function gives for a case. Of a loss, this is the gradient with respect to `logp`.

    Two forms of a loss with the same gradient train the same model; their values may differ.
    """
    args = module.Args(**case["args"])
    inputs = [tensor(values) if isinstance(values, list) else values for values in case["inputs"]]
    if function != "policy_loss":
        result = getattr(module, function)(*inputs, args)
        return torch.stack(result) if isinstance(result, tuple) else result
    logp = inputs[0].requires_grad_()
    loss, _ = module.policy_loss(logp, *inputs[1:], args)
    if not loss.requires_grad:
        return torch.zeros_like(logp)
    (gradient,) = torch.autograd.grad((tensor(case["weights"]) * loss).sum(), logp)
    return gradient


def equal(a: list[Tensor], b: list[Any]) -> bool:
    return all(
        x.shape == tensor(y).shape and torch.allclose(x.double(), tensor(y), rtol=1e-4, atol=1e-9)
        for x, y in zip(a, b, strict=True)
    )


def verdict(module: ModuleType, function: str, answers: dict[str, Any]) -> str | None:
    """What is wrong with a function, or None."""
    try:
        results = [output(module, function, case) for case in answers["cases"]]
    except NotImplementedError:
        return "it is not written yet."
    except Exception as error:
        return f"it ends with {type(error).__name__}: {error}"
    if equal(results, answers["right"]):
        return None
    for mistake in answers["mistakes"]:
        if equal(results, mistake["outputs"]):
            return mistake["message"]
    for result, right in zip(results, answers["right"], strict=True):
        right = tensor(right)
        if result.shape != right.shape:
            return f"it returns the shape {tuple(result.shape)}, not {tuple(right.shape)}."
        if not result.isfinite().all():
            return "it returns numbers that are not finite; look for a division by 0 or an exp of something large."
        where = torch.unravel_index((result - right).abs().argmax(), right.shape)
        if not torch.allclose(result.double(), right, rtol=1e-4, atol=1e-9):
            what = "the gradient of the loss" if function == "policy_loss" else "the value"
            place = [int(index) for index in where]
            return f"{what} at {place} is {result[where].item():.6g} and should be {right[where].item():.6g}."
    raise AssertionError("unreachable: the results are equal after all")


def exercises() -> list[tuple[str, str]]:
    """(script, function) of everything to be written, as far as the files are here."""
    answers = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    return [(name, function) for name in answers if (HERE / f"{name}.py").exists() for function in answers[name]]


@pytest.mark.parametrize("name,function", exercises())
def test_exercise(name: str, function: str) -> None:
    problem = verdict(load(HERE / f"{name}.py"), function, json.loads(ANSWERS.read_text())[name][function])
    if problem:
        pytest.fail(f"{name}.py, {function}: {problem}", pytrace=False)
