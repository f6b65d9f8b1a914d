"""A script beside its comments and the tensors of a real small batch: `main` runs, and every assignment is recorded."""

import ast
import contextlib
import inspect
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.records import Problem, Rollouts
from tools.scripts import load, script_path
from tools.site.lines import highlighted

import torch

SMALL = {"steps": 1, "prompts_per_step": 2, "responses_per_prompt": 4, "warmup_steps": 0}
QUIET = {"eval_every": 0, "eval_problems": 8, "eval_samples": 2, "save_every": 0, "engine": "transformers"}
ROWS, COLUMNS = 8, 9  # of a tensor, at most, that are shown


def targets(tree: ast.AST) -> dict[int, list[str]]:
    """The names that the statement on each line assigns."""
    found: dict[int, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.For):
            heads = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [part.id for head in heads for part in ast.walk(head) if isinstance(part, ast.Name)]
            found[node.lineno] = [name for name in names if name not in ("args", "model", "tokenizer", "optimizer")]
    return found


def number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1e4 else f"{value:.0f}"


def shown(name: str, value: Any, tokenizer: Any) -> dict[str, Any] | None:
    """A value as a table or a text; None if it is of no use to a reader."""
    if isinstance(value, tuple) and value and isinstance(value[0], torch.Tensor):
        value = value[0]
    if isinstance(value, torch.Tensor):
        value = value.detach()
        table = value.reshape(1, -1) if value.dim() < 2 else value.reshape(-1, value.shape[-1])
        rows = [[number(float(x)) for x in row[:COLUMNS]] for row in table[:ROWS].tolist()]
        more = table.shape[1] > COLUMNS
        shape = ", ".join(map(str, value.shape))
        return {"name": name, "shape": f"({shape})", "rows": [row + ["…"] * more for row in rows]}
    if isinstance(value, Rollouts):
        return {"name": name, "list": [tokenizer.decode(ids, skip_special_tokens=True) for ids in value.tokens]}
    if isinstance(value, list) and value and isinstance(value[0], Problem):
        several = [problem.prompt for problem in value[:4]]
        return {"name": name, "list": several, "count": len(value)}
    if isinstance(value, bool | int | float):
        return {"name": name, "text": number(value)}
    return None


def traced(name: str, keep: Callable[[Any, int, dict[str, Any]], None], **settings: Any) -> None:
    """Run a script; `keep` gets the frame, the line, and the values that this line assigned or returned."""
    script, path = load(name), str(script_path(name))
    assigned, last = targets(ast.parse(Path(path).read_text())), {}

    def in_script(frame: Any, event: str, argument: Any) -> Any:
        line = last.get(frame)
        keep(frame, line, {key: frame.f_locals[key] for key in assigned.get(line, ()) if key in frame.f_locals})
        if event == "return" and argument is not None:
            keep(frame, frame.f_lineno, {"returns": argument})
        last[frame] = frame.f_lineno
        return in_script

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        args = script.Args(run_dir=Path(folder) / "run", **QUIET, **settings)
        before = sys.gettrace()
        sys.settrace(lambda frame, *_: in_script if frame.f_code.co_filename == path else None)
        try:
            script.main(args)
        finally:
            sys.settrace(before)


def recorded(name: str) -> dict[int, dict[str, Any]]:
    """Values of one step as text, by line, of the first seed that gives each prompt correct and incorrect responses."""
    fewer = {"num_minibatches": 2} if hasattr(load(name).Args(), "num_minibatches") else {}
    for seed in range(1, 30):
        found: dict[int, dict[str, Any]] = {}
        rewards = []

        def keep(frame: Any, line: int, values: dict[str, Any], found: dict = found, rewards: list = rewards) -> None:
            for key, value in values.items():
                if (text := shown(key, value, frame.f_locals.get("tokenizer"))) is not None:
                    found.setdefault(line, {})[key] = text
                if key == "rewards" and frame.f_code.co_name == "main":
                    rewards.append(value)

        traced(name, keep, seed=seed, **SMALL, **fewer)
        if bool((rewards[-1] != rewards[-1][:, :1]).any(1).all()):
            return found
    raise RuntimeError(f"{name}: no seed below 30 has two groups with both correct and incorrect responses")


def notes(text: str) -> dict[int, str]:
    """Comments that fill a line, and docstrings: the text, by its first line; "" for the lines after it."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found |= dict.fromkeys(range(node.lineno, node.end_lineno + 1), "")
            found[node.lineno] = inspect.cleandoc(node.value.value)
    for i, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith("#") and i not in found:
            found[i] = line.strip("# ")
    return found


def segments(name: str) -> list[dict[str, Any]]:
    """The script in pieces: line number, code as HTML, notes, and the values that the piece assigned."""
    text = script_path(name).read_text()
    lines, code, beside, values = text.splitlines(), highlighted(text), notes(text), recorded(name)
    pieces: list[dict[str, Any]] = []
    fresh = True
    for i, line in enumerate(lines, 1):
        setting = line.startswith("    ") and ": " in line and not line.startswith("     ") and i + 1 in beside
        if i in beside and beside[i] and pieces and (pieces[-1]["code"] and line.strip().startswith("#")):
            fresh = True
        if fresh or setting:
            pieces.append({"first": i, "code": [], "notes": [], "values": {}})
        fresh = not line.strip()
        piece = pieces[-1]
        if i in beside:
            piece["notes"] += [beside[i]] if beside[i] else []
        elif line.strip():
            piece["first"] = piece["first"] if piece["code"] else i
            piece["code"].append(code[i - 1])
            piece["values"] |= values.get(i, {})
    return [piece for piece in pieces if piece["code"] or piece["notes"]]
