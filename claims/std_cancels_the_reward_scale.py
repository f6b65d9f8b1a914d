"""Dividing by the group's standard deviation makes GRPO indifferent to the scale and offset of rewards.

Said by: DeepSeekMath, 2402.03300, Sec. 4.1.2, by its formula, and most write-ups on GRPO.

Tested: grpo.py's and dr_grpo.py's advantages of 200 random groups of 8 rewards in [0, 1], and of the same rewards times
0.01, 0.1, 10 and 100, plus 5.

Rule: reproduced if grpo.py's advantages change by less than 1e-3 for every scale; else contradicted.
"""

import dr_grpo
import grpo
from claims.court import axes, decide
from tools.plots import BLUE, ORANGE
from tools.scripts import call

import torch

KIND = "exact"
SCALES = (0.01, 0.1, 10, 100)


def compute():
    rewards = torch.rand(200, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = {}
    for name, script in {"grpo": grpo, "dr_grpo": dr_grpo}.items():
        before = call(script.compute_advantages, rewards=rewards, args=script.Args())
        after = {s: call(script.compute_advantages, rewards=s * rewards + 5, args=script.Args()) for s in SCALES}
        result[name] = {scale: ((A - before).abs().max() / before.abs().max()).item() for scale, A in after.items()}
    return result


def verdict(result):
    return decide(max(result["grpo"].values()) < 1e-3)


def effect(result):
    worst = {name: max(changes.values()) for name, changes in result.items()}
    changes = f"{worst['grpo']:.0e} (grpo), {worst['dr_grpo']:.0f} (dr_grpo)"
    return f"largest relative change of an advantage over scales of 0.01 to 100: {changes}"


def draw(result):
    panel = axes(
        "With the std, advantages do not follow the scale of rewards",
        "rewards are multiplied by",
        "largest change of an advantage, relative",
        xscale="log",
        yscale="log",
    )
    for (name, changes), color in zip(result.items(), (BLUE, ORANGE), strict=True):
        panel.plot(SCALES, changes.values(), marker="o", color=color, label=f"{name}.py")
    panel.legend()
    return panel.figure
