"""The tables behind the sliders, computed from the scripts' functions, and the ratios of real rollouts as they age."""

from types import ModuleType
from typing import Any

from tools import fingerprint
from tools.fingerprint import attempt
from tools.scripts import load, parents
from tools.site.reading import traced

import torch

GROUPS = [2, 4, 8, 16, 32]
SCALES = [0.25, 0.5, 1.0, 2.0, 4.0]
RATIOS = fingerprint.RATIOS[::4]
AGES = [0, 1, 2, 4, 8]  # rollout batches
STEP = 10  # whose batch is used
QUANTILES = {"1 %": 0.01, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "99 %": 0.99}


def rounded(values: list[Any] | None) -> list[Any] | None:
    return values and [value if value is None else float(f"{value:.4g}") for value in values]


def of_script(name: str) -> dict[str, Any]:
    """What a script's fingerprint shows: advantages, factors of the ratio, and weights. None where it has no curve."""
    script = load(name)

    def factors(scale: float, whole: bool, sign: float) -> list[Any] | None:
        args = fingerprint.scaled(script, scale)
        return rounded(attempt(fingerprint.factors, script, sign, whole, RATIOS, args)[0])

    advantages = [attempt(fingerprint.advantages, script, group)[0] for group in GROUPS]
    return {
        "advantages": [a and [rounded(a["correct"]), rounded(a["incorrect"])] for a in advantages],
        "factors": [[[factors(s, whole, sign) for sign in (1.0, -1.0)] for whole in (False, True)] for s in SCALES],
        "weights": rounded(attempt(fingerprint.weights, script)[0]),
    }


def old_batch(age: int) -> dict[str, torch.Tensor]:
    """Log-probs, mask and advantages of the rollout batch that step STEP trains on, sampled `age` batches before."""
    found: dict[str, torch.Tensor] = {}

    def keep(frame: Any, line: int, values: dict[str, Any]) -> None:
        if frame.f_code.co_name == "main":
            found.update(
                {k: v for k, v in values.items() if k in ("learner_logp", "rollout_logp", "mask", "advantages")}
            )

    traced("grpo", keep, steps=STEP, prompts_per_step=8, staleness=age)
    return found


def slopes(script: ModuleType, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(B, T) gradients of the log-probs, with the ratio to the engine."""
    old, logp = batch["rollout_logp"], batch["learner_logp"].detach().clone().requires_grad_()
    values = {"old_logp": old, "rollout_logp": old, "advantages": batch["advantages"], "mask": batch["mask"]}
    loss, _ = fingerprint.ask(script, "policy_loss", logp=logp, args=script.Args(), **values)
    return torch.autograd.grad(loss.sum(), logp)[0]


def ages() -> dict[str, Any]:
    """Quantiles of the ratio of learner to engine by age, and the fraction of tokens whose gradient a script stops."""
    quantiles, stopped = [], {name: [] for name in parents()}
    for age in AGES:
        batch = old_batch(age)
        mask = batch["mask"]
        ratios = (batch["learner_logp"] - batch["rollout_logp"]).exp()[mask]
        quantiles.append(rounded(ratios.quantile(torch.tensor(list(QUANTILES.values()))).tolist()))
        learns = mask & (batch["advantages"] != 0)
        for name in parents():
            slope, _ = attempt(slopes, load(name), batch)
            stopped[name].append(slope if slope is None else round((slope[learns] == 0).float().mean().item(), 4))
    return {"ages": AGES, "names": list(QUANTILES), "quantiles": quantiles, "stopped": stopped}


def tables() -> dict[str, Any]:
    scripts = {name: of_script(name) for name in parents()}
    axes = {"groups": GROUPS, "scales": SCALES, "ratios": RATIOS, "lengths": fingerprint.LENGTHS}
    return axes | {"scripts": scripts, "age": ages()}
