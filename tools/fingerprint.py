"""What a method does to a token, as three curves computed from the functions of its script.

python -m tools.fingerprint                 # the scripts at the top level, one row each: reports/fingerprints.png
python -m tools.fingerprint grpo gspo       # some scripts over each other: fingerprint.png

The advantage of a correct and of an incorrect response, by the number of correct ones in the group. The factor that
the ratio puts before A ∇log π, by autograd through `policy_loss`: for one token whose ratio differs from 1, and for a
response all of whose tokens have it. The weight of a token by the length of its response.
"""

import inspect
import math
import re
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


def verdicts(group: int) -> Tensor:
    """(2 (G + 1), G): groups with 0 to G correct responses, then as many without any, so that the mean is not 1/2."""
    counts = torch.cat([torch.arange(group + 1), torch.zeros(group + 1)])
    return (torch.arange(group) < counts[:, None]).double()


def advantages(script: ModuleType, group: int = GROUP) -> dict[str, list[float | None]] | None:
    """Advantages of correct and incorrect responses in groups with 0 to G correct ones; None if rewards play no part.

    It follows `main`: what shapes the rewards, and what is applied to the advantages. All responses have one length.
    A critic, and VinePPO's samples, know the fraction of correct responses of each prompt.
    """
    main, args = inspect.getsource(script.main), script.Args()
    if not re.search(r"compute_advantages\([^)]*\b(\w+_)?rewards\b", main):
        return None
    correct = verdicts(group)
    rewards = 2 * correct - 1 if "= 2 * rewards - 1" in main else correct
    lengths = torch.full_like(correct, LENGTH)
    if hasattr(script, "shape_rewards"):
        rewards = call(script.shape_rewards, correct=correct, lengths=lengths, budgets=lengths[:, :1], args=args)
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
    found = call(script.compute_advantages, **values)
    found = (found[0] if isinstance(found, tuple) else found).double().view(-1, 1)
    old_logp = torch.full_like(found, PROBABILITY).log()
    for after in re.findall(r" advantages = (?!compute_)(\w+)\(advantages", main):
        found = call(getattr(script, after), advantages=found, mask=rows >= 0, old_logp=old_logp, args=args)
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
    loss, _ = call(script.policy_loss, logp=logp, advantages=torch.full_like(old, sign), **values)
    (slope,) = torch.autograd.grad(loss.sum(), logp)
    return (slope[:, 0] / -sign).tolist()


def weights(script: ModuleType, lengths: list[int] = LENGTHS, others: int = LENGTH) -> list[float]:
    """A token's weight in a response of some length, over its weight when all of the group have the same length."""

    def weight(length: int) -> float:
        ends = torch.tensor([length] + [others] * (GROUP - 1))
        mask = (torch.arange(max(length, others)) < ends[:, None]).double()  # (G, T)
        return call(script.token_weights, mask=mask, args=script.Args())[0, 0].item()

    unit = weight(others)
    return [weight(length) / unit for length in lengths]


def fingerprint(script: ModuleType) -> dict[str, Any]:
    """All curves of a script."""
    return {
        "advantages": advantages(script),
        "token": {name: factors(script, sign, whole=False) for name, sign in SIGNS.items()},
        "response": {name: factors(script, sign, whole=True) for name, sign in SIGNS.items()},
        "weights": weights(script),
        "bounds": [x if math.isfinite(x) else None for x in bounds(script)],
    }


def scaled(script: ModuleType, scale: float) -> Any:
    """Settings in which what bounds the ratio in `policy_loss` is wider by a factor."""
    args, changed = script.Args(), {}
    for name in set(re.findall(r"args\.(\w+)", inspect.getsource(script.policy_loss))):
        if "clip" in name or name == "delta":
            changed[name] = getattr(args, name) * scale
        elif name == "ratio_cap":
            changed[name] = 1 + (getattr(args, name) - 1) * scale
    return replace(args, **changed)


# What the curves say in words


def close(a: list[float], b: list[float]) -> bool:
    return torch.allclose(torch.tensor(a), torch.tensor(b), rtol=1e-3, atol=1e-5)


def baseline(script: ModuleType) -> str:
    """What a reward is compared with and divided by, found by comparing the advantages with those of known formulas."""
    found = advantages(script)
    if found is None:
        return "no reward"
    mixed = range(1, GROUP)
    mine = [found[kind][k] for kind in ("correct", "incorrect") for k in mixed]
    p = torch.tensor([[k / GROUP for k in mixed]] * 2, dtype=torch.double)
    reward = torch.tensor([[1.0], [0.0]], dtype=torch.double).expand(p.shape)
    centered = reward - p
    known = {
        "none": [reward, 2 * reward - 1],
        "batch mean": [reward - verdicts(GROUP).mean()],
        "mean of the others": [centered * GROUP / (GROUP - 1)],
        "group mean": [centered],
        "group mean, over the group's mean": [centered / p],
        "group mean, over the group's std": [centered / (p * (1 - p) * GROUP / (GROUP - 1)).sqrt()],
    }
    whose = "critic" if hasattr(script, "value_loss") else "sampled values" if hasattr(script, "split_steps") else ""
    if "scores" in inspect.signature(script.compute_advantages).parameters:
        whose = "pairs within the group"
    for name, formulas in known.items():
        if not whose and any(close(mine, formula.flatten().tolist()) for formula in formulas):
            return name
    for name in ("group mean", "batch mean", "group mean, over the group's std"):
        formula = known[name][0].flatten().tolist()
        if close([x * formula[0] / mine[0] for x in mine], formula):
            return whose or (name if "std" in name else f"{name}, scaled over the batch")
    return whose or "its own"


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


def clips_single_tokens(script: ModuleType) -> bool:
    """Whether a single token beyond the bound loses its gradient, while the others of its response keep theirs."""
    old = torch.full((1, TOKENS), 0.1, dtype=torch.double).log()
    moved = torch.tensor([[2.0] + [0.0] * (TOKENS - 1)], dtype=torch.double)  # the first token's ratio is e²
    logp = (old + moved).requires_grad_()
    values = {"old_logp": old, "rollout_logp": old, "mask": torch.ones_like(old).bool(), "args": script.Args()}
    loss, _ = call(script.policy_loss, logp=logp, advantages=torch.ones_like(old), **values)
    slopes = torch.autograd.grad(loss.sum(), logp)[0][0]
    return slopes[0].item() == 0 and bool((slopes[1:] != 0).all())


def ratio_level(script: ModuleType) -> str:
    """Whether a factor depends on a token's own ratio, on that of its response, or on none."""
    old = torch.full((1, 2), 0.1, dtype=torch.double).log()
    logp = (old + torch.tensor([[2e-4, 0.0]], dtype=torch.double)).requires_grad_()  # within every bound
    values = {"old_logp": old, "rollout_logp": old, "mask": torch.ones_like(old).bool(), "args": script.Args()}
    loss, _ = call(script.policy_loss, logp=logp, advantages=torch.ones_like(old), **values)
    own, other = torch.autograd.grad(loss.sum(), logp)[0][0].neg().tolist()
    if abs(own - 1) < 1e-9:
        return "none"
    return "token" if abs(other - 1) < 1e-9 else "response"


def stops(script: ModuleType) -> str:
    """What happens to the gradient when the ratio leaves 1, in words."""
    if ratio_level(script) == "none":
        return "nothing"
    below, above = bounds(script)
    if below or above < math.inf:
        found = [f"below {below:.5g}" if below else "", f"above {above:.5g}" if above < math.inf else ""]
        alone = ratio_level(script) == "response" and clips_single_tokens(script)
        return "no gradient " + ", ".join(filter(None, found)) + ", each token alone" * alone
    ratios = [1.0, 2.0, 4.0, 8.0, 16.0]
    found = factors(script, 1.0, True, ratios)
    if close(found, ratios):
        return "nothing"
    return f"weight is capped at {found[-1]:.5g}" if found == sorted(found) else "fades"


def average(script: ModuleType) -> str:
    """What `token_weights` divides by, found from a minibatch of two groups with different lengths."""
    lengths = torch.tensor([2, 4] + [6] * (GROUP - 2) + [8] * GROUP)
    mask = (torch.arange(8) < lengths[:, None]).double()
    found = call(script.token_weights, mask=mask, args=script.Args())  # (B, T)
    first = found[:, 0].tolist()
    per_response, groups = (found.sum(1)).tolist(), found.sum(1).view(2, GROUP).sum(1).tolist()
    if close(per_response, [per_response[0]] * len(first)):
        return "mean per response" if close([sum(per_response)], [1.0]) else "mean per response, responses summed"
    if not close(first, [first[0]] * len(first)):
        return "mean per prompt" if close(groups, [groups[0]] * 2) else "its own"
    if close([first[0] * mask.sum().item()], [1.0]):
        return "all tokens alike"
    per_row = first[0] * len(first)
    return "sum per response" if close([per_row], [1.0]) or first[0] == 1 else "sum over a constant"


def updates(script: ModuleType) -> str:
    """How far the policy is from the one that sampled, at the default settings."""
    args = script.Args()
    count = args.num_minibatches * args.update_epochs if hasattr(args, "num_minibatches") else 1
    if args.staleness:
        return f"off-policy, {args.staleness} batches old"
    return "on-policy" if count == 1 else f"off-policy, {count} updates per batch"


def weight_in_long(script: ModuleType) -> float:
    """The weight of a token of a response of twice the length, over that of a token of the others of its group."""
    ends = torch.tensor([2 * LENGTH] + [LENGTH] * (GROUP - 1))
    mask = (torch.arange(2 * LENGTH) < ends[:, None]).double()  # (G, T)
    found = call(script.token_weights, mask=mask, args=script.Args())  # (G, T)
    return (found[0, 0] / found[1, 0]).item()


def traits(name: str) -> dict[str, str]:
    """What distinguishes a script, in words; long: `weight_in_long`."""
    script = load(name)
    return {
        "baseline": baseline(script),
        "ratio": ratio_level(script),
        "stops": stops(script),
        "averages": average(script),
        "long": f"{weight_in_long(script):.2f}",
        "updates": updates(script),
        "critic": "yes" if hasattr(script, "value_loss") else "no",
    }


# Pictures

TITLES = ("advantage", "factor, one token", "factor, whole response", "relative weight of a token")
LABELS = ("correct of 8", "ratio", "ratio", "length of the response")


KINDS = (("positive", "correct", GREEN, "-"), ("negative", "incorrect", RED, "--"))


def small_multiples(names: list[str]) -> Figure:
    """A row for each script, in the order of the family tree."""
    figure = Figure(figsize=(11, 0.85 * len(names) + 0.7), layout="constrained")
    grid = figure.subplots(len(names), 4, sharex="col", squeeze=False)
    for axes, name in zip(grid, names, strict=True):
        mine = fingerprint(load(name))
        for sign, kind, color, line in KINDS:
            values = (mine["advantages"] or {kind: [None] * (GROUP + 1)})[kind]
            axes[0].plot(range(GROUP + 1), [math.nan if x is None else x for x in values], line, color=color)
            axes[1].plot(RATIOS, mine["token"][sign], line, color=color)
            axes[2].plot(RATIOS, mine["response"][sign], line, color=color)
        axes[3].plot(LENGTHS, mine["weights"], color="black")
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


def overlay(names: list[str]) -> Figure:
    """Some scripts over each other; A > 0 and A < 0 have panels of their own."""
    figure = Figure(figsize=(15, 6), layout="constrained")
    grid = figure.subplots(2, 4)
    for name in names:
        mine, look = fingerprint(load(name)), drawn(method_style(name))
        for row, (sign, kind) in zip(grid, (("positive", "correct"), ("negative", "incorrect")), strict=True):
            if mine["advantages"]:
                values = [math.nan if x is None else x for x in mine["advantages"][kind]]
                row[0].plot(range(GROUP + 1), values, label=name, **look)
            row[1].plot(RATIOS, mine["token"][sign], label=name, **look)
            row[2].plot(RATIOS, mine["response"][sign], label=name, **look)
            row[3].plot(LENGTHS, mine["weights"], label=name, **look)
    for row, kind in zip(grid, ("correct, A > 0", "incorrect, A < 0"), strict=True):
        for one, title, label in zip(row, TITLES, LABELS, strict=True):
            panel(one, f"{title}, {kind}" if "weight" not in title else title, label, "")
    grid[1][3].remove()
    figure.legend(*grid[0][1].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return figure


@dataclass
class Args:
    scripts: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names of scripts, drawn over each other; without any, those at the top level, one row each."""
    out: Path | None = None
    """The picture; by default fingerprint.png, without names reports/fingerprints.png."""


def main(args: Args) -> None:
    names = [script_path(name).stem for name in args.scripts]
    out = args.out or (Path("fingerprint.png") if names else REPORTS / "fingerprints.png")
    figure = overlay(names) if names else small_multiples([n for n in parents() if script_path(n).parent == ROOT])
    if out.suffix[1:] not in figure.canvas.get_supported_filetypes():
        fail(f"--out {out} is not a picture: its name must end in .png, .pdf or .svg.")
    try:
        figure.savefig(out, dpi=80)
    except OSError as error:
        fail(f"--out {out} cannot be written: {error.strerror}.")
    say(f"picture  {out}")


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
