"""Judge a student's function by its results: whether it is correct and, if not, which known mistake explains them.

Only `passed` decides. It accepts only numbers that are equal to the correct ones.
"""

import math
from typing import Any

import torch
from torch import Tensor

# A relative tolerance of 1/1000, so that any ε up to 1e-4 added to a standard deviation passes.
RELATIVE, ABSOLUTE = 1e-3, 1e-4  # of the value itself, and of the largest value of the output
ZERO = 1e-12  # rounding error allowed where all values should be 0


def numbers(output: dict[str, Any]) -> Tensor:
    return torch.tensor(output["values"], dtype=torch.double).view(output["shape"])


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two results of a case have the same shapes and numbers; `b` sets the scale. NaN equals NaN."""
    if "outputs" not in a or "outputs" not in b or len(a["outputs"]) != len(b["outputs"]):
        return False
    for x, y in zip(a["outputs"], b["outputs"], strict=True):
        scale = max(map(abs, y["values"]), default=0.0)
        atol = max(ABSOLUTE * scale, ZERO) if math.isfinite(scale) else 0.0
        near = x["shape"] == y["shape"] and torch.allclose(
            numbers(x), numbers(y), rtol=RELATIVE, atol=atol, equal_nan=True
        )
        if not near:
            return False
    return True


def wrong_type(case: dict[str, Any], got: str, right: str) -> str | None:
    """What is wrong with a result's type, or None."""
    given = [next(iter(x)) for x in case["inputs"] if isinstance(x, dict)]
    if right == "bool":
        return None if got == "bool" else f"it returns {got}: return booleans."
    if right == "int64":
        return None if got == right else f"it returns {got}: return token ids or row numbers, as int64."
    if not any(kind.startswith("float") for kind in given):
        return None if got.startswith("float") else f"it returns {got}: return floating-point numbers."
    return None if got == right else f"it returns {got} for {right} inputs: return the type of the inputs."


def passed(results: list[dict[str, Any]], answers: dict[str, Any]) -> bool:
    """Whether every case's result equals the correct one: number of outputs, shapes, types and values."""
    right, cases = answers["right"], answers["cases"]
    if not right or len(results) != len(right):
        return False
    types = [
        wrong_type(case, x["dtype"], y["dtype"])
        for result, wanted, case in zip(results, right, cases, strict=True)
        for x, y in zip(result.get("outputs", []), wanted["outputs"], strict=False)
    ]
    return all(map(equal, results, right)) and types == [None] * len(types)


def verdict(results: list[dict[str, Any]], answers: dict[str, Any]) -> str | None:
    """What is wrong with a function, or None. `results` are those of `runner.run` for `answers["cases"]`."""
    return None if passed(results, answers) else reason(results, answers) or "it gives no result."


def reason(results: list[dict[str, Any]], answers: dict[str, Any]) -> str:
    """What is wrong with a function that has not passed."""
    right, settings, varied = answers["right"], answers["settings"], answers["varied"]
    if len(results) != len(right):
        return str(results[0].get("problem", "")) if results else ""
    first_shape = tuple(right[0]["outputs"][0]["shape"])
    hard_coded = f"it is correct for the shape {first_shape} but not for others: a shape is hard-coded"
    for i, result in enumerate(results):
        if "outputs" not in result:
            problem = result.get("problem", "")
            return f"{hard_coded}; with another shape {problem}" if i and varied[i] else problem
    for result, wanted, case in zip(results, right, answers["cases"], strict=True):
        if len(result["outputs"]) != len(wanted["outputs"]):
            return f"it returns {len(result['outputs'])} tensors, not {len(wanted['outputs'])}."
        for x, y in zip(result["outputs"], wanted["outputs"], strict=True):
            if x["shape"] != y["shape"]:
                return f"it returns the shape {tuple(x['shape'])}, not {tuple(y['shape'])}."
            if message := wrong_type(case, x["dtype"], y["dtype"]):
                return message
    wrong = [i for i, result in enumerate(results) if not equal(result, right[i])]
    plain = [i for i in range(len(results)) if not settings[i]]
    for where in (range(len(results)), plain, [i for i in plain if not varied[i]]):
        if set(where) & set(wrong):
            for mistake in answers["mistakes"]:
                if all(equal(results[i], mistake["results"][i]) for i in where):
                    of_a_loop = "world" in answers["cases"][0]
                    return mistake["message"] + (f" First, {difference(results, answers)}" if of_a_loop else "")
    for i in wrong:
        if not set(plain) & set(wrong) and answers["ignored"][i] and equal(results[i], answers["ignored"][i]):
            name, value = next(iter(settings[i].items()))
            return f"args.{name} is ignored: {name}={value} gives the same as the default."
    if all(varied[i] for i in wrong):
        return f"{hard_coded}."
    return difference(results, answers)


def difference(results: list[dict[str, Any]], answers: dict[str, Any]) -> str:
    """The first incorrect number; for a loop, with its update and parameter."""
    right = answers["right"]
    i = next(i for i, result in enumerate(results) if not equal(result, right[i]))
    for k, (x, y) in enumerate(zip(results[i]["outputs"], right[i]["outputs"], strict=True)):
        got, wanted = numbers(x), numbers(y)
        if not got.isfinite().all():
            return "it returns numbers that are not finite: look for a division by 0 or the exp of a large number."
        if not equal({"outputs": [x]}, {"outputs": [y]}):
            place = [int(n) for n in torch.unravel_index((got - wanted).abs().argmax(), wanted.shape)]
            kind = answers["what"][k]
            return f"{kind} at {place} is {got[*place].item():.6g} and should be {wanted[*place].item():.6g}."
    raise AssertionError("unreachable: the results are equal")
