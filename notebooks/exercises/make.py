"""Make the handout: the scripts at the top level with the functions of their objectives left to be written, and checks.

    python -m notebooks.exercises.make handout        # all methods
    python -m notebooks.exercises.make handout grpo dr_grpo

The student writes the functions and runs `pytest handout`. The solutions are the scripts of this repository: they stay
here. The handout needs torch and pytest only, and matplotlib for the curves of the silent bugs.
"""

import ast
import json
import re
import shutil
import sys
import types
from pathlib import Path
from typing import Any

from common.cli import fail
from common.scripts import ROOT, parents, script_path
from notebooks.exercises.check import output
from notebooks.exercises.mistakes import MISTAKES

import torch

HERE = Path(__file__).parent
SCRIPTS = [name for name in parents() if script_path(name).parent == ROOT]
FUNCTIONS = {
    "compute_advantages": "Rewards in, advantages out; shapes are those of the rewards.",
    "token_weights": "(B, T) mask of a whole minibatch in, (B, T) weights out: the loss is (weights * loss).sum().",
    "policy_loss": ("All inputs (B, T): the per-token loss (B, T) out, and a dict of metrics, which may stay empty."),
    "tis_weight": "All inputs (B, T): weights (B, T) of truncated importance sampling, π_old / π_sampler capped.",
}
NUMBERS = {"Count": "int", "CountOrZero": "int", "GroupSize": "int"}  # the scripts' ranges without the range
HELPERS = {"divergence", "coarse_distribution"}  # DPPO's, which are given


def source(name: str) -> str:
    return (ROOT / f"{name}.py").read_text()


def module(text: str, name: str) -> types.ModuleType:
    """Source text as a module."""
    made = types.ModuleType(name)
    sys.modules[name] = made  # dataclasses look their module up
    exec(compile(text, f"{name}.py", "exec"), made.__dict__)
    return made


def cases(name: str, solution: types.ModuleType) -> dict[str, list[dict[str, Any]]]:
    """Inputs for each function, made so that every known mistake shows."""
    generator = torch.Generator().manual_seed(7)
    rewards = torch.tensor([[1, 0, 0, 0, 0, 1], [1, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0]]).double()  # (3, 6)
    mask = torch.arange(7) < torch.tensor([[2], [5], [3], [6]])  # (4, 7): the last column is padding
    wide = torch.arange(9) < torch.tensor([[2], [5], [3], [6]])
    old = -3 * torch.rand(4, 7, generator=generator, dtype=torch.double) - 0.05
    moves = torch.tensor([-0.7, -0.3, 0.1, 0.35, 0.6, 2.0, -0.05], dtype=torch.double)
    logp = torch.stack([old[i] + moves.roll(i) for i in range(4)]).clamp(max=-0.01)
    rollout = old + 0.5 * torch.randn(4, 7, generator=generator, dtype=torch.double)
    rollout[0, 0] = old[0, 0] - 1.2  # beyond the cap of TIS
    rollout = rollout.clamp(max=-0.01)
    signs = torch.tensor([[1.0], [-0.5], [-2.0], [0.7]], dtype=torch.double).expand(4, 7)
    settings = {"max_response_tokens": 12}
    advantage_inputs = {
        "reinforce": [rewards.tolist(), 0.0],
        "ppo": [
            torch.randn(4, 7, generator=generator, dtype=torch.double).mul(mask).tolist(),
            torch.randn(4, 7, generator=generator, dtype=torch.double).mul(mask).tolist(),
            mask.tolist(),
        ],
    }
    losses = []
    for scale in (1.0, 2e-4):  # GSPO's range is a thousand times narrower
        near = old + scale * (logp - old)
        weights = solution.token_weights(mask, solution.Args(**settings)).double()
        for flipped in (1.0, -1.0):
            inputs = [near, old, rollout, flipped * signs, mask]
            losses.append({"args": settings, "inputs": [x.tolist() for x in inputs], "weights": weights.tolist()})
    return {
        "compute_advantages": [{"args": settings, "inputs": advantage_inputs.get(name, [rewards.tolist()])}],
        "token_weights": [{"args": settings, "inputs": [m.tolist()]} for m in (mask, wide)],
        "policy_loss": losses,
        "tis_weight": [
            {"args": settings | {"tis_cap": cap}, "inputs": [x.tolist() for x in (old, rollout, mask)]}
            for cap in (2.0, 0.0)
        ],
    }


def answers(name: str) -> dict[str, Any]:
    """For each function: cases, the right outputs, and the outputs and messages of its known mistakes."""
    solution = module(source(name), f"solution_{name}")
    result = {}
    for function, its_cases in cases(name, solution).items():
        if not hasattr(solution, function):
            continue
        mistakes = []
        for k, (script, where, line, wrong_line, message) in enumerate(MISTAKES):
            if (script, where) == (name, function):
                wrong = module(mistaken(name, where, line, wrong_line), f"mistake_{k}")
                mistakes.append({"message": message, "outputs": [output(wrong, where, c).tolist() for c in its_cases]})
        right = [output(solution, function, case).tolist() for case in its_cases]
        result[function] = {"cases": its_cases, "right": right, "mistakes": mistakes}
    return result


def mistaken(name: str, function: str, line: str, wrong_line: str) -> str:
    """A script's source with a mistake in one of its functions."""
    text = source(name)
    node = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == function)
    lines = text.splitlines(keepends=True)
    body = "".join(lines[node.lineno - 1 : node.end_lineno])
    assert line in body, f"{name}.py, {function} has no line {line!r}"
    before, after = "".join(lines[: node.lineno - 1]), "".join(lines[node.end_lineno :])
    return before + body.replace(line, wrong_line) + after


def without_ranges(text: str) -> str:
    """Settings with plain types: the ranges are this repository's."""
    text = re.sub(r": (Annotated\[.*\]) =", ": float =", text)
    return re.sub(r": ([A-Z]\w+) =", lambda match: f": {NUMBERS.get(match[1], 'float')} =", text)


def blank(name: str) -> str:
    """A script without its loop, and with the functions of the objective left to be written."""
    text = source(name)
    lines = text.splitlines()
    tree = ast.parse(text)
    doc = ast.get_docstring(tree).split("\n    python ")[0].rstrip()
    parts = [f'"""{doc}\n\nWrite the functions; then: pytest .\n"""\n']
    parts.append("import math\nfrom dataclasses import dataclass\nfrom typing import Literal\n")
    parts.append("import torch\nfrom torch import Tensor\n")
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Args":
            shared = next(i for i, line in enumerate(lines) if line.startswith("    # The same in every script"))
            length = next(i for i, line in enumerate(lines) if line.startswith("    max_response_tokens"))
            block = [*lines[length : length + 2], "", *lines[node.lineno : shared]]
            parts.append("\n@dataclass\nclass Args:\n" + without_ranges("\n".join(block).rstrip()) + "\n")
        elif isinstance(node, ast.FunctionDef) and node.name in HELPERS:
            parts.append("\n" + "\n".join(lines[node.lineno - 1 : node.end_lineno]) + "\n")
        elif isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS:
            head = "\n".join(lines[node.lineno - 1 : node.body[0].lineno - 1])
            todo = f'    """{FUNCTIONS[node.name]}"""\n    raise NotImplementedError("yours to write")\n'
            parts.append(f"\n{head}\n{todo}")
    return "\n".join(parts)


def make(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True)
    for name in names:
        (folder / f"{name}.py").write_text(blank(name))
    (folder / "answers.json").write_text(json.dumps({name: answers(name) for name in names}) + "\n")
    shutil.copy(HERE / "check.py", folder / "test_exercises.py")
    for file in ("silent_bugs.py", "bugs.json"):
        shutil.copy(HERE / file, folder)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        fail("name the folder to make: python -m notebooks.exercises.make handout")
    folder, names = Path(sys.argv[1]), sys.argv[2:] or SCRIPTS
    if folder.exists():
        fail(f"{folder} exists; nothing is overwritten.")
    for name in names:
        if name not in SCRIPTS:
            fail(f"{name} is none of the scripts: {', '.join(SCRIPTS)}.")
    make(folder, names)
    print(f"{folder}: {len(names)} exercises; check them with: pytest {folder}")
