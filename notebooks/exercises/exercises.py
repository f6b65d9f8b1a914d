"""The exercises: the functions that differ between the top-level scripts, each in the first script that has it.

The scripts are the solutions. Only their functions are loaded here, not the packages that a run needs.
"""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tools.scripts import ROOT, parents, script_path
from worlds import MODELS

import torch
from torch import Tensor

HERE = Path(__file__).parent
LENGTH = MODELS["sums"].max_response_tokens  # the length limit that the scripts take from their embedded model
SCRIPTS = [name for name in parents() if script_path(name).parent == ROOT]
LOSS = "All tensors (B, T). Returns the per-token loss (B, T) and a dict of metrics, which may be empty."


@dataclass(frozen=True)
class Exercise:
    """A function to write. Its level, 1 to 3, is also its points."""

    script: str
    function: str
    level: int
    task: str

    @property
    def name(self) -> str:
        return f"{self.script}.{self.function}"


EXERCISES = [
    Exercise(*exercise)
    for exercise in (
        ("reinforce", "compute_advantages", 1,
         "(P, G) rewards in, (P, G) advantages out: the reward minus the baseline that args.baseline selects: 0, the\n"
         "    batch's mean reward, or the moving average `ema`."),
        ("reinforce", "token_weights", 1,
         "(B, T) mask in, (B, T) weights out: the loss is the mean over responses of the sum over their tokens."),
        ("reinforce", "policy_loss", 1, LOSS),
        ("rloo", "compute_advantages", 1,
         "(P, G) rewards in, (P, G) advantages out: the reward minus the mean of the other G - 1."),
        ("grpo", "compute_advantages", 1,
         "(P, G) rewards in, (P, G) advantages out: the z-score in the group; the std divides by G - args.ddof, and\n"
         "    a group without signal gets 0. You may add any ε up to 1e-4 to the std."),
        ("grpo", "token_weights", 1,
         "(B, T) mask in, (B, T) weights out: the loss is the mean over responses of the mean over their tokens."),
        ("dr_grpo", "compute_advantages", 1, "(P, G) rewards in, (P, G) advantages out."),
        ("dr_grpo", "token_weights", 1,
         "(B, T) mask in, (B, T) weights out: the mean over responses of the sum over tokens divided by L, the\n"
         "    length limit args.max_response_tokens."),
        ("dapo", "token_weights", 1, "(B, T) mask in, (B, T) weights out: the mean over all tokens."),
        ("maxrl", "compute_advantages", 1,
         "(P, G) rewards of 0 and 1 in, (P, G) advantages out; a group without a correct response gets 0."),
        ("grpo", "policy_loss", 2, LOSS),
        ("dapo", "policy_loss", 2, LOSS),
        ("cispo", "policy_loss", 2,
         LOSS + "\n    A token's weight is capped at args.ratio_cap; there is no lower clip."),
        ("grpo", "tis_weight", 2,
         "Both log-probs (B, T). Returns the weights (B, T) of truncated importance sampling, π_old / π_engine, at\n"
         "    most args.tis_cap; a cap of 0 disables them."),
        ("grpo", "kl_penalty", 2,
         "Both inputs (B, T). Returns k3 (B, T): with x = π_ref / π_θ of the sampled token, x - log x - 1."),
        ("dapo", "has_signal", 2,
         "Both inputs (P, G): which responses are correct, as 0 and 1, and their shaped rewards (±1 and a penalty for\n"
         "    length). Returns (P,) booleans: True for groups that dynamic sampling keeps."),
        ("ppo", "value_loss", 2,
         "All inputs (B, T). Returns the critic's per-token loss (B, T): half of the larger of two squared errors,\n"
         "    of the value and of the value clipped to within args.value_clip of the old one."),
        ("ppo", "compute_advantages", 3,
         "Token rewards, values and mask (B, T) in; GAE's advantages and returns (B, T) out. After the last token of\n"
         "    a response the value is 0; values on padding do not matter."),
        ("gspo", "policy_loss", 3, LOSS),
        ("gmpo", "policy_loss", 3, LOSS + "\n    A log ratio is clipped at args.clip_log_eps before the mean."),
        ("gmpo", "tis_weight", 3,
         "All tensors (B, T). Returns (B, T): the geometric mean over a response of the capped weights of its tokens."),
        ("dppo", "policy_loss", 3,
         LOSS + "\n    `old_logp` is log μ, the engine's log-probs. The ratio, capped at args.ratio_cap, is the\n"
         "    weight of log π. A token is masked if its ratio moved in the advantage's direction and\n"
         "    divergence(μ, π, kind) exceeds args.delta."),
    )
]  # fmt: skip
BY_NAME = {exercise.name: exercise for exercise in EXERCISES}

# Dynamic sampling is one line of DAPO's loop; this is the same line as a function:
HAS_SIGNAL = '''def has_signal(correct: Tensor, rewards: Tensor) -> Tensor:
    """Which groups (P,) are neither all correct nor all incorrect."""
    return (correct.mean(1) > 0) & (correct.mean(1) < 1)  # (P,)
'''
SIGNAL_LINE = "(kept if 0 < sum(group.correct) < G else spare)"
SIGNAL_CALL = (
    "(kept if has_signal(torch.tensor([group.correct]).float(), (2 * row - 1 + overlong_penalty("
    "torch.tensor(list(map(len, group.tokens))), args))[None])[0] else spare)"
)


@cache
def functions(script: str) -> dict[str, str]:
    """The source of every function of a script's objective, by name."""
    text = (ROOT / f"{script}.py").read_text()
    found = {n.name: ast.get_source_segment(text, n) for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}
    del found["main"]
    return found | ({"has_signal": HAS_SIGNAL} if script == "dapo" else {})


def code(source: str) -> str:
    """A function's syntax tree without docstring, as text."""
    node = ast.parse(source).body[0]
    if ast.get_docstring(node):
        node.body = node.body[1:]
    return ast.dump(node)


def parameters(source: str) -> list[str]:
    """The names of a function's parameters."""
    return [a.arg for a in ast.parse(source).body[0].args.args]


def owner(script: str, function: str) -> str:
    """The script whose file holds the exercise for this function."""
    mine = code(functions(script)[function])
    return next(e.script for e in EXERCISES if e.function == function and code(functions(e.script)[function]) == mine)


@cache
def defaults(script: str) -> dict[str, Any]:
    """The method's own settings and the length limit, by name."""
    tree = ast.parse((ROOT / f"{script}.py").read_text())
    args = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Args")
    return {
        node.target.id: eval(ast.unparse(node.value), {"float": float})
        for node in args.body
        if isinstance(node, ast.AnnAssign)
    } | {"max_response_tokens": LENGTH}


def module(script: str, replaced: dict[str, str] | None = None) -> ModuleType:
    """The functions of a script's objective as a module, with some sources replaced."""
    made = ModuleType(script)
    made.__dict__.update(torch=torch, Tensor=Tensor)
    sources = functions(script) | (replaced or {})
    exec("\n\n".join(["from __future__ import annotations", *sources.values()]), made.__dict__)
    return made


def needed(script: str) -> list[Exercise]:
    """The exercises that a run of a script uses."""
    used = {e.function for e in EXERCISES} & set(functions(script))
    return [e for e in EXERCISES if e.function in used and e.script == owner(script, e.function)]
