"""What a method does to a token, as three curves computed from the functions of its script.

python -m tools.fingerprint                 # the scripts at the top level, one row each: reports/fingerprints.png
python -m tools.fingerprint grpo gspo       # several scripts overlaid: runs/fingerprint.png

The advantage of a correct and of an incorrect response, by the number of correct ones in the group. The factor that
the ratio puts before A ∇log π, by autograd through `policy_loss`: for one token whose ratio differs from 1, and for a
response all of whose tokens have it. The weight of a token by the length of its response.
"""

import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from common.cli import fail, say
from common.help import parse_args
from tools.plots import GREEN, RED, drawn, method_style, panel
from tools.reports import REPORTS
from tools.scripts import ROOT, call, load, parents, script_path

import torch
import tyro
from matplotlib.figure import Figure
from torch import Tensor

GROUP = 8  # responses to a prompt
TOKENS = 8  # of a response, for the factor
LENGTH = 32  # tokens of the other responses, for the weight
PROBABILITY = 0.4  # π_old of a token; DPPO, DCPO and Advantage Reweighting depend on it
RATIOS = [round(0.4 + 0.005 * i, 3) for i in range(321)]  # 0.4 to 2
LENGTHS = list(range(1, 97))
SIGNS = {"positive": 1.0, "negative": -1.0}


class NoCurve(Exception):
    """Why a script has no curve of some kind."""


def ask(script: ModuleType, function: str, **values: Any) -> Any:
    """Call a script's function. Raises NoCurve if there is none, or if it needs values that are not known here."""
    if not hasattr(script, function):
        raise NoCurve(f"it has no {function}")
    parameters = inspect.signature(getattr(script, function)).parameters.values()
    unknown = [p.name for p in parameters if p.name not in values and p.default is p.empty]
    if unknown:
        raise NoCurve(f"{function} needs {', '.join(unknown)}, which rewards, ratios and lengths do not determine")
    return call(getattr(script, function), **values)


def attempt(compute: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """A curve, or None and the reason why there is none."""
    try:
        return compute(*arguments), ""
    except NoCurve as reason:
        return None, str(reason)


def verdicts(group: int) -> Tensor:
    """(2 (G + 1), G): groups with 0 to G correct responses, then as many without any, so that the mean is not 1/2."""
    counts = torch.cat([torch.arange(group + 1), torch.zeros(group + 1)])
    return (torch.arange(group) < counts[:, None]).double()


def advantages(script: ModuleType, group: int = GROUP) -> dict[str, list[float | None]]:
    """Advantages of correct and incorrect responses in groups with 0 to G correct ones.

    It follows `main`: what shapes the rewards, and what is applied to the advantages. All responses have one length.
    A critic, and VinePPO's samples, know the fraction of correct responses of each prompt.
    """
    main, args = inspect.getsource(script.main), script.Args()
    takes = inspect.signature(script.compute_advantages).parameters if hasattr(script, "compute_advantages") else ()
    made_up = re.search(r"\n +rewards = \(?torch\.arange", main)  # SPIN's mark the data set's solutions
    if made_up or not any("rewards" in name for name in takes):
        raise NoCurve("rewards play no part in its advantages")
    correct = verdicts(group)
    rewards = 2 * correct - 1 if "= 2 * rewards - 1" in main else correct
    lengths = torch.full_like(correct, LENGTH)
    if hasattr(script, "shape_rewards"):
        rewards = ask(script, "shape_rewards", correct=correct, lengths=lengths, budgets=lengths[:, :1], args=args)
    rows, chances = correct.view(-1, 1), correct.mean(1, keepdim=True).expand(correct.shape).reshape(-1, 1)
    values: dict[str, Any] = {"rewards": rewards, "ema": rewards.mean(), "args": args, "mask": rows >= 0}
    values |= {"kl": torch.zeros_like(rows), "scores": torch.zeros_like(correct), "values": chances}
    values |= {"function_rewards": rewards[None], "reward_weights": torch.ones(1)}  # of one function
    if hasattr(script, "value_loss"):
        values["rewards"] = rows  # of tokens: each response has one
    elif hasattr(script, "split_steps"):
        values |= {"values": chances.tolist(), "steps": [[1]] * len(rows)}
    if hasattr(script, "remember"):
        values["so_far"] = script.remember({}, [[i] for i in range(len(correct))], rewards, args)
    found = ask(script, "compute_advantages", **values)
    found = (found[0] if isinstance(found, tuple) else found).double().view(-1, 1)
    old_logp = torch.full_like(found, PROBABILITY).log()
    for after in re.findall(r" advantages = (?!compute_)(\w+)\(advantages", main):
        found = ask(script, after, advantages=found, mask=rows >= 0, old_logp=old_logp, args=args)
    found = found.view(correct.shape)[: group + 1].tolist()
    right = [None, *(row[0] for row in found[1:])]
    return {"correct": right, "incorrect": [*(row[-1] for row in found[:-1]), None]}


def factors(
    script: ModuleType,
    sign: float,
    whole: bool,
    ratios: list[float] = RATIOS,
    args: Any = None,
) -> list[float]:
    """The factor before A ∇log π of a response's first token whose ratio is given; `whole`: all tokens have it."""
    old = torch.full((len(ratios), TOKENS), PROBABILITY, dtype=torch.double).log()  # (B, T)
    logp = old.clone()  # (B, T)
    logp[:, slice(None) if whole else slice(1)] += torch.tensor(ratios, dtype=torch.double).log()[:, None]
    values = {"old_logp": old, "rollout_logp": old, "mask": torch.ones_like(old).bool(), "args": args or script.Args()}
    logp.requires_grad_()
    loss, _ = ask(script, "policy_loss", logp=logp, advantages=torch.full_like(old, sign), **values)
    (slope,) = torch.autograd.grad(loss.sum(), logp)
    return (slope[:, 0] / -sign).tolist()


def signed_factors(script: ModuleType, whole: bool, ratios: list[float] = RATIOS) -> dict[str, list[float]]:
    """The factors for either sign of the advantage."""
    return {name: factors(script, sign, whole, ratios) for name, sign in SIGNS.items()}


def weights(script: ModuleType, lengths: list[int] = LENGTHS, others: int = LENGTH) -> list[float]:
    """A token's weight in a response of some length, over its weight when all of the group have the same length."""

    def weight(length: int) -> float:
        ends = torch.tensor([length] + [others] * (GROUP - 1))
        mask = (torch.arange(max(length, others)) < ends[:, None]).double()  # (G, T)
        return ask(script, "token_weights", mask=mask, args=script.Args())[0, 0].item()

    unit = weight(others)
    return [weight(length) / unit for length in lengths]


def bounds(script: ModuleType) -> tuple[float, float]:
    """Ratios of a whole response at which its gradient ends: for A < 0, below 1, and for A > 0, above; else 0 and ∞."""
    found = []
    for sign in SIGNS.values():
        steps = [10 ** (-4.6 + 0.01 * i) for i in range(510)]  # the ratio is exp(± step), up to e^3

        def factor(step: float, sign: float = sign) -> float:
            return factors(script, sign, True, [math.exp(sign * step)])[0]

        several = factors(script, sign, True, [math.exp(sign * step) for step in steps])
        first = next((i for i, factor in enumerate(several) if factor == 0), None)
        low, high = (0.0, 0.0) if first is None else (steps[first - 1] if first else 0.0, steps[first])
        for _ in range(40 * bool(high)):
            middle = (low + high) / 2
            low, high = (low, middle) if factor(middle) == 0 else (middle, high)
        found.append(math.exp(sign * high) if high else math.inf * sign)
    above, below = found
    return max(0.0, below), above


def fingerprint(script: ModuleType) -> dict[str, Any]:
    """All curves of a script; None and, in "why", a reason for those that it does not have."""
    found: dict[str, Any] = {"why": {}}
    for key, compute, *arguments in (
        ("advantages", advantages),
        ("token", signed_factors, False),
        ("response", signed_factors, True),
        ("weights", weights),
        ("bounds", bounds),
    ):
        found[key], why = attempt(compute, script, *arguments)
        found["why"] |= {key: why} if why else {}
    return found


def scaled(script: ModuleType, scale: float) -> Any:
    """Settings whose bounds on the ratio in `policy_loss` are wider by a factor."""
    args, changed = script.Args(), {}
    source = inspect.getsource(script.policy_loss) if hasattr(script, "policy_loss") else ""
    for name in set(re.findall(r"args\.(\w+)", source)):
        if "clip" in name or name == "delta":
            changed[name] = getattr(args, name) * scale
        elif name == "ratio_cap":
            changed[name] = 1 + (getattr(args, name) - 1) * scale
    return replace(args, **changed)


# Pictures

TITLES = ("advantage", "factor, one token", "factor, whole response", "relative weight of a token")
LABELS = ("correct of 8", "ratio", "ratio", "length of the response")
KINDS = (("positive", "correct", GREEN, "-"), ("negative", "incorrect", RED, "--"))


def curves(mine: dict[str, Any], sign: str, kind: str) -> list[tuple[Sequence[float], Sequence[float]]]:
    """The points of the four curves, x and y; none of a curve that the script does not have."""
    found: list[tuple[Sequence[float], Sequence[float]]] = []
    for xs, key, part in (
        (range(GROUP + 1), "advantages", kind),
        (RATIOS, "token", sign),
        (RATIOS, "response", sign),
        (LENGTHS, "weights", None),
    ):
        ys = mine[key] and (mine[key][part] if part else mine[key])
        found.append((xs, [math.nan if y is None else y for y in ys]) if ys else ([], []))
    return found


def small_multiples(found: dict[str, dict[str, Any]]) -> Figure:
    """A row for each script, in the order of the family tree, from its fingerprint."""
    figure = Figure(figsize=(11, 0.85 * len(found) + 0.7), layout="constrained")
    grid = figure.subplots(len(found), 4, sharex="col", squeeze=False)
    for axes, (name, mine) in zip(grid, found.items(), strict=True):
        for sign, kind, color, line in KINDS:
            *three, weight = curves(mine, sign, kind)
            for one, points in zip(axes, three, strict=False):
                one.plot(*points, line, color=color)
        axes[3].plot(*weight, color="black")
        axes[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize="large")
        low, high = axes[0].get_ylim()
        for one, limit in zip(axes, ((min(low, -2.9), max(high, 2.9)), (-0.1, 2.1), (-0.1, 2.1), (0, 3)), strict=True):
            one.set(ylim=limit)
            one.grid(alpha=0.3)
    for one, title, label in zip(grid[0], TITLES, LABELS, strict=True):
        one.set_title(title, fontsize="medium")
        grid[-1][list(grid[0]).index(one)].set_xlabel(label)
    figure.suptitle("Green: correct, A > 0.  Dashed: incorrect, A < 0.", fontsize="medium")
    return figure


def overlay(found: dict[str, dict[str, Any]]) -> Figure:
    """Several scripts overlaid; A > 0 and A < 0 have separate panels."""
    figure = Figure(figsize=(15, 6), layout="constrained")
    grid = figure.subplots(2, 4)
    for name, mine in found.items():
        look = drawn(method_style(name))
        for row, (sign, kind, *_) in zip(grid, KINDS, strict=True):
            for one, points in zip(row, curves(mine, sign, kind), strict=True):
                one.plot(*points, label=name, **look)
    for row, kind in zip(grid, ("correct, A > 0", "incorrect, A < 0"), strict=True):
        for one, title, label in zip(row, TITLES, LABELS, strict=True):
            panel(one, f"{title}, {kind}" if "weight" not in title else title, label, "")
    grid[1][3].remove()
    figure.legend(*grid[0][1].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return figure


@dataclass
class Args:
    scripts: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names of scripts to overlay; without any, those at the top level, one row each."""
    out: Path | None = None
    """The picture; by default runs/fingerprint.png, without names reports/fingerprints.png."""


def main(args: Args) -> None:
    names = [script_path(name).stem for name in args.scripts]
    out = args.out or (ROOT / "runs/fingerprint.png" if names else REPORTS / "fingerprints.png")
    if out.suffix[1:] not in Figure().canvas.get_supported_filetypes():
        fail(f"--out {out} is not a picture: its name must end in .png, .pdf or .svg.")
    eleven = [name for name in parents() if script_path(name).parent == ROOT]
    found = {name: fingerprint(load(name)) for name in names or eleven}
    for name, mine in found.items():
        for key, why in mine["why"].items():
            say(f"{name} has no curve of {key}: {why}")
    figure = overlay(found) if names else small_multiples(found)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=80)
    except OSError as error:
        fail(f"--out {out} cannot be written: {error.strerror}.")
    say(f"picture  {out}")


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
