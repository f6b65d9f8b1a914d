"""A script with one part replaced, for claims about what no flag changes.

    python -m claims.variant grpo+coin --steps 20                # every reward is a coin flip
    python -m claims.variant grpo+shuffled                       # each group's rewards in a random order
    python -m claims.variant grpo+lenient=0.2                    # an incorrect answer is accepted with chance 0.2
    python -m claims.variant grpo+k1 --kl-beta 0.5               # the k1 estimate of the KL in the loss, not k3
    python -m claims.variant grpo+incorrect                      # only advantages below 0 (or +correct, above 0)
    python -m claims.variant dppo+negative                       # the mask on negative advantages alone (or positive)
    python -m claims.variant dppo+random                         # on as many tokens as +negative would, at random
    python -m claims.variant grpo+dr_grpo.token_weights          # a function of another script

Random rewards are sampled after the script has seeded the step: the same in every arm with the same seed. Random masks
have their own generator, the same for all seeds.
"""

import dataclasses
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from common.cli import fail
from tools.scripts import call, load

import torch
import tyro
from torch import Tensor

REWARDS: dict[str, Callable[[Tensor, float], Tensor]] = {  # (P, G) rewards in, (P, G) rewards out
    "coin": lambda rewards, _: torch.randint_like(rewards, 2),
    "shuffled": lambda rewards, _: rewards.gather(1, torch.rand_like(rewards).argsort(1)),
    "lenient": lambda rewards, q: torch.maximum(rewards, (torch.rand_like(rewards) < q).float()),
}
ADVANTAGES: dict[str, Callable[[Tensor], Tensor]] = {  # advantages in and out, of the same shape
    "correct": lambda advantages: advantages.clamp(min=0),
    "incorrect": lambda advantages: advantages.clamp(max=0),
}
MASKS = ("negative", "positive", "random")


def with_mask(script: ModuleType, kind: str) -> Callable[..., tuple[Tensor, dict[str, Tensor]]]:
    """DPPO's policy loss, masked only where the advantage is negative, only where it is positive, or at random."""
    original, generator = script.policy_loss, torch.Generator().manual_seed(0)

    def policy_loss(*inputs):  # as in the script
        given = inspect.signature(original).bind(*inputs).arguments
        advantages, args = given["advantages"], given["args"]  # (B, T)
        mask = given["logp"] != 0  # (B, T), False on padding
        _, values = original(*inputs)
        free, _ = original(**given | {"args": dataclasses.replace(args, delta=1e6)})  # (B, T), nothing masked
        masked = {side: values[side].bool() & mask for side in ("clip_pos", "clip_neg")}  # (B, T)
        if kind == "negative":
            masked["clip_pos"] = torch.zeros_like(mask)
        if kind == "positive":
            masked["clip_neg"] = torch.zeros_like(mask)
        if kind == "random":
            candidates = (advantages < 0) & mask  # (B, T)
            draws = torch.rand(mask.shape, generator=generator).to(mask.device) * candidates  # (B, T)
            order = draws.flatten().argsort(descending=True)  # (B T,)
            chosen = torch.zeros_like(mask).flatten()  # (B T,)
            chosen[order[: int(masked["clip_neg"].sum())]] = True
            masked = {"clip_pos": torch.zeros_like(mask), "clip_neg": chosen.view(mask.shape)}
        keep = ~(masked["clip_pos"] | masked["clip_neg"])  # (B, T)
        return keep * free, values | {side: where.float() for side, where in masked.items()}

    return policy_loss


def taking(original: Callable[..., Any], other: Callable[..., Any], args: Any) -> Callable[..., Any]:
    """Another script's function, called with the parameters of the original and with `args`."""
    return lambda *inputs: call(other, **{"args": args} | inspect.signature(original).bind(*inputs).arguments)


def change(script: ModuleType, name: str, args: Any) -> None:
    """Replace one part of a script, which runs with `args`."""
    kind, _, number = name.partition("=")
    other, _, function = name.rpartition(".")
    if kind in REWARDS:
        original, q = script.compute_advantages, float(number or 0)
        script.compute_advantages = lambda rewards, *more: original(REWARDS[kind](rewards, q), *more)
    elif kind in ADVANTAGES:
        advantages_of = script.compute_advantages
        script.compute_advantages = lambda *inputs: ADVANTAGES[kind](advantages_of(*inputs))
    elif kind == "k1":
        script.kl_penalty = lambda logp, ref_logp: logp - ref_logp
    elif kind in MASKS:
        script.policy_loss = with_mask(script, kind)
    elif other and "=" not in name:
        setattr(script, function, taking(getattr(script, function), getattr(load(other), function), args))
    else:
        known = ", ".join([*REWARDS, *ADVANTAGES, "k1", *MASKS])
        fail(f"{name} is not a change of a script: name {known} or SCRIPT.FUNCTION.")


def main(arguments: list[str]) -> Any:
    first, *flags = arguments or fail("name a script and its changes: python -m claims.variant grpo+coin")
    name, *changes = first.split("+")
    script = load(name)
    args = tyro.cli(script.Args, args=flags, description=__doc__)
    for one in changes:
        change(script, one, args)
    script.main(args)


if __name__ == "__main__":
    main(sys.argv[1:])
