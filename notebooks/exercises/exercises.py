"""The exercises: the functions that differ between the top-level scripts, each from the first script that has it.

The scripts are the solutions. Only their functions are loaded here, not the packages that a run needs.
"""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tools.scripts import ROOT, parents, parse, script_path
from worlds import MODELS

import torch
from torch import Tensor

HERE = Path(__file__).parent
LENGTH = MODELS["sums"].max_response_tokens  # the length limit that the scripts take from their embedded model
SCRIPTS = [name for name in parents() if script_path(name).parent == ROOT]
FILES = [*SCRIPTS, "loop"]  # files that students write
# Methods that `changed` in loop.py may train, and how their loops differ from GRPO's beyond the functions they call.
CHANGES: dict[str, tuple[tuple[str, str], ...]] = {
    "dr_grpo": (
        (".view(P, G), args)", ".view(P, G))"),
        ("token_weights(mask[rows])", "token_weights(mask[rows], args)"),
    ),
    "maxrl": ((".view(P, G), args)", ".view(P, G))"),),
    "cispo": (),
    "gspo": (("advantages[rows], args)", "advantages[rows], mask[rows], args)"),),
    "gmpo": (
        ("advantages[rows], args)", "advantages[rows], mask[rows], args)"),
        ("rollout_logp, args)", "rollout_logp, mask, args)"),
    ),
}
LOSS = "All tensors (B, T). Returns the per-token loss (B, T) and a dict of metrics, which may be empty."


@dataclass(frozen=True)
class Exercise:
    """A function to write. Its level, 1 to 3, is also its points. `method` is what `loop.changed` trains."""

    script: str
    function: str
    level: int
    task: str
    method: str = ""

    @property
    def name(self) -> str:
        return f"{self.script}.{self.function}"

    @property
    def kind(self) -> str:
        """How the results are compared: see `GRADIENT` in runner.py."""
        return self.function

    @property
    def source(self) -> str:
        """The solution's source."""
        if not self.method:
            return functions(self.script)[self.function]
        source = functions(self.script)["train"].replace("def train", f"def {self.function}")
        for old, new in CHANGES[self.method]:
            source = source.replace(old, new)
        return source

    @property
    def settings(self) -> dict[str, Any]:
        """The defaults in `args`."""
        return (defaults(self.method) if self.method else {}) | defaults(self.script)

    def module(self, source: str | None = None) -> ModuleType:
        """The solution's module, with another source for this exercise's function."""
        return module(self.script, {self.function: source or self.source}, self.method)


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
        ("loop", "response_mask", 1,
         "Lengths (B,) of the responses in, EOS included; their (B, T) mask of booleans out, T the longest."),
        ("loop", "collate", 1,
         "B prompts and B responses as token ids, and the engine's log-probs of the responses. Returns the tokens\n"
         "    (B, S), prompt and response next to each other and padded on the right with 0, and the log-probs (B, T)\n"
         "    of the responses, padded with 0."),
        ("loop", "response_logps", 2,
         "Logits (B, S, V) after each of the tokens (B, S) of `collate`, the prompts' lengths (B,) and the response\n"
         "    mask (B, T). Returns the log-probs (B, T) of the response's tokens, 0 on padding."),
        ("loop", "exact_rewards", 1,
         "B texts, their correct answers, and whether each was truncated. Returns (B,) rewards: 1.0 if what stands\n"
         "    in the last box is exactly the answer, else 0.0; a truncated response gets 0.0."),
        ("loop", "minibatches", 1,
         "The order (P,) of the problems in a pass, G, and the number of minibatches, a divisor of P. Returns a list\n"
         "    with the row numbers (b,) of each minibatch: the next P / count problems, each with its G rows."),
        ("loop", "train", 3,
         "GRPO without KL. `args` holds the settings of Args; the loss is that of grpo.py: policy loss times TIS\n"
         "    weight, summed with the weights of the minibatch. The old log-probs are the policy's own. Each pass\n"
         "    over a rollout batch takes its order from one call of torch.randperm(P), just before its minibatches.\n"
         "    Returns the mean reward of each step (steps,)."),
        ("loop", "changed", 3,
         "The same with the method that CHANGE above names, one of " + ", ".join(CHANGES) + ":\n"
         "    its advantages, weights, loss and TIS weights. `args` also holds the method's settings."),
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


def solution_path(script: str) -> Path:
    """The file with the solutions: the script, or loop.py in this folder."""
    return (HERE if script == "loop" else ROOT) / f"{script}.py"


@cache
def functions(script: str) -> dict[str, str]:
    """The source of every function of a script's objective, by name."""
    text = solution_path(script).read_text()
    found = {n.name: ast.get_source_segment(text, n) for n in parse(text).body if isinstance(n, ast.FunctionDef)}
    found.pop("main", None)
    return found | ({"has_signal": HAS_SIGNAL} if script == "dapo" else {})


def code(source: str) -> str:
    """A function's syntax tree without its docstring, as text."""
    node = parse(source).body[0]
    if ast.get_docstring(node):
        node.body = node.body[1:]
    return ast.dump(node)


def parameters(source: str) -> list[str]:
    """The names of a function's parameters."""
    return [a.arg for a in parse(source).body[0].args.args]


def owner(script: str, function: str) -> str:
    """The script whose file has the exercise for this function."""
    mine = code(functions(script)[function])
    return next(e.script for e in EXERCISES if e.function == function and code(functions(e.script)[function]) == mine)


@cache
def defaults(script: str) -> dict[str, Any]:
    """The method's own settings and the length limit, by name."""
    tree = parse(solution_path(script).read_text())
    args = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Args")
    return {
        node.target.id: eval(ast.unparse(node.value), {"float": float})
        for node in args.body
        if isinstance(node, ast.AnnAssign)
    } | {"max_response_tokens": LENGTH}


def module(script: str, replaced: dict[str, str] | None = None, method: str = "") -> ModuleType:
    """A script's objective functions as a module, with some sources replaced; for the loop, with the functions that it
    calls, GRPO's or another method's."""
    made = ModuleType(script)
    made.__dict__.update(torch=torch, Tensor=Tensor, Any=Any, re=re)
    called = functions(method or "grpo") if script == "loop" else {}
    sources = called | functions(script) | (replaced or {})
    exec("\n\n".join(["from __future__ import annotations", *sources.values()]), made.__dict__)
    return made


def needed(script: str) -> list[Exercise]:
    """The exercises that a script's run uses."""
    used = {e.function for e in EXERCISES} & set(functions(script))
    return [e for e in EXERCISES if e.function in used and e.script == owner(script, e.function)]
