"""MaxRL reaches a higher pass@k than GRPO at the same pass@1.

Said by: MaxRL, 2602.02710, Abstract ("MaxRL Pareto-dominates existing methods in all models and tasks we tested"),
which trains Qwen3-4B with 16 responses per prompt.

Tested: 60 prompts with 16 answers each, two of them correct and unlikely at first. The logits are 16 random features of
the prompt times weights that all prompts share, so that prompts compete. Gradient ascent along Σ_x w(p_x) ∇p_x, where
w(p) is the exact expected weight of rloo.py, grpo.py and maxrl.py for groups of 8; all steps have the same length.
pass@64 at the step where the mean pass@1 reaches 0.5, in 12 random problems; also with w = 1/p, which MaxRL approaches.

Rule: on the paired difference in pass@64 between maxrl.py and grpo.py, with a 95 % interval over the problems:
reproduced if it is above 0 and at least 0.01; contradicted if the interval excludes a gain of 0.01.
"""

import grpo
import maxrl
import rloo
from claims.court import axes, judge, prompt_weight
from tools.plots import BLUE, GRAY, GREEN, ORANGE
from tools.stats import interval

import numpy as np
import torch

KIND = "exact"
PROBLEMS, PROMPTS, ANSWERS, RIGHT, FEATURES = 12, 60, 16, 2, 16
STEP, MOST_STEPS, TARGET = 0.2, 2000, 0.5
GRID = np.linspace(0.0005, 0.9995, 1000)
KS = (1, 4, 16, 64, 256)
ARMS = {"rloo": rloo, "grpo": grpo, "maxrl": maxrl, "1/p": None}


def weights(script):
    """w(p) on the grid."""
    return [prompt_weight(script, p, 8) for p in GRID] if script else 1 / GRID


def train(features, right, bias, weight):
    """Success rates (problems, prompts) once their mean reaches the target, and the number of steps."""
    theta = torch.zeros(PROBLEMS, FEATURES, ANSWERS, dtype=torch.float64, requires_grad=True)
    at_target, steps = torch.zeros(PROBLEMS, PROMPTS, dtype=torch.float64), torch.zeros(PROBLEMS)
    for step in range(MOST_STEPS):
        p = ((features @ theta + bias).softmax(-1) * right).sum(-1)  # (problems, prompts)
        reached = (p.mean(1) >= TARGET) & (steps == 0)
        at_target[reached], steps[reached] = p.detach()[reached], step
        if (steps > 0).all():
            return at_target, steps
        w = torch.from_numpy(np.interp(p.detach().numpy(), GRID, weight))
        (gradient,) = torch.autograd.grad((w * p).sum(), theta)
        with torch.no_grad():
            theta += STEP * gradient / gradient.norm(dim=(1, 2), keepdim=True)
    raise RuntimeError("the mean pass@1 did not reach its target")


def problems(seed):
    """Features of the prompts, which answers are correct, and the logits that make these unlikely at first."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(PROBLEMS, PROMPTS, FEATURES, dtype=torch.float64, generator=generator) / FEATURES**0.5
    right = torch.rand(PROBLEMS, PROMPTS, ANSWERS, generator=generator).argsort(-1) < RIGHT
    return features, right, -4 * torch.rand(PROBLEMS, PROMPTS, 1, dtype=torch.float64, generator=generator) * right


def compute():
    features, right, bias = problems(0)
    trained = {arm: train(features, right, bias, weights(script)) for arm, script in ARMS.items()}
    pass_at = {arm: {k: (1 - (1 - p) ** k).mean(1) for k in KS} for arm, (p, _) in trained.items()}
    return {
        "pass@k": {arm: {k: x.mean().item() for k, x in of_arm.items()} for arm, of_arm in pass_at.items()},
        "steps": {arm: steps.mean().item() for arm, (_, steps) in trained.items()},
        "maxrl less grpo, pass@64": interval((pass_at["maxrl"][64] - pass_at["grpo"][64]).tolist()),
    }


def verdict(result):
    return judge(*result["maxrl less grpo, pass@64"], smallest=0.01)


def effect(result):
    mean, half = result["maxrl less grpo, pass@64"]
    passes = ", ".join(f"{arm} {of_arm['64']:.3f}" for arm, of_arm in result["pass@k"].items())
    return f"pass@64 at pass@1 = 0.5: {passes}; maxrl less grpo {mean:+.3f} ± {half:.3f}"


def draw(result):
    panel = axes("At the same pass@1, MaxRL's weights keep more prompts solvable", "k", "pass@k", xscale="log")
    for arm, color in zip(ARMS, (GRAY, BLUE, GREEN, ORANGE), strict=True):
        label = "w = 1/p" if arm == "1/p" else f"{arm}.py, G = 8"
        panel.plot(KS, result["pass@k"][arm].values(), marker="o", color=color, label=label)
    panel.set_xticks(KS, KS)
    panel.minorticks_off()
    panel.legend()
    return panel.figure
