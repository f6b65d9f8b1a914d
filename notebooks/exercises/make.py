"""Make the handout: a folder with the methods' functions to be written, and checks.

    python -m notebooks.exercises.make handout
    python -m notebooks.exercises.make handout --key SECRET --bugs

Students write the functions. `pytest handout` says what is wrong and why, `python handout/train.py grpo` trains with
them, and `python handout/silent_bugs.py` plots runs with hidden bugs. The solutions are the scripts of this repository.
Neither they nor the cases of `python -m notebooks.exercises.grade` are in the handout. With a key the handout also has
variants.py, with functions that no script holds, and with --bugs silent bugs of the class's own. The grader needs the
same two options.
"""

import ast
import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.cli import fail, say
from common.help import parse_args
from notebooks.exercises.answers import HANDOUT_SEED, answers
from notebooks.exercises.exercises import (
    CHANGES,
    EXERCISES,
    HERE,
    LENGTH,
    SCRIPTS,
    SIGNAL_CALL,
    SIGNAL_LINE,
    Exercise,
    functions,
    needed,
    solution_path,
)
from notebooks.exercises.key import check_key, class_logs
from notebooks.exercises.silent_bugs import LOGS, blank_form
from notebooks.exercises.train import PANELS
from notebooks.exercises.variants import KINDS, blank_variants, variants
from tools.scripts import ROOT

import tyro

NUMBERS = {"Count": "int", "CountOrZero": "int", "GroupSize": "int"}  # the scripts' number types without their ranges
RUNS = ROOT / "reports" / "methods.json"  # three seeds of each method, for comparison with a student's run
STEPS = 20
HELPERS = {"divergence", "coarse_distribution"}  # DPPO's helpers, given to students
COPIED = {
    "files.py": "files.py",
    "runner.py": "runner.py",
    "tiny.py": "tiny.py",
    "embedded.py": "loops/loop.py",
    "sandbox.py": "sandbox.py",
    "verdict.py": "verdict.py",
    "check.py": "test_exercises.py",
    "train.py": "train.py",
    "silent_bugs.py": "silent_bugs.py",
}


@dataclass
class Args:
    folder: tyro.conf.Positional[Path]
    """The folder to create."""
    key: str | None = None
    """A secret that draws functions for this class."""
    bugs: bool = False
    """Also give out the silent bugs of the key instead of the practice runs; first run make_bugs with the same key."""


def without_ranges(text: str) -> str:
    """Settings with plain types instead of this repository's ranges."""
    text = re.sub(r": (Annotated\[.*\]) =", ": float =", text)
    return re.sub(r": ([A-Z]\w+) =", lambda match: f": {NUMBERS.get(match[1], 'float')} =", text)


def blank(script: str) -> str:
    """A script without its loop; the functions that are exercises in this file have no body."""
    text = (ROOT / f"{script}.py").read_text()
    lines, tree = text.splitlines(), ast.parse(text)
    mine = {exercise.function: exercise for exercise in EXERCISES if exercise.script == script}
    levels = ", ".join(f"{function} (level {exercise.level})" for function, exercise in mine.items())
    others = [e.name for e in needed(script) if e.script != script]
    doc = ast.get_docstring(tree).split("\n    python ")[0].rstrip()
    doc += f"\n\nWrite {levels}; then: pytest -k {script}\n"
    doc += f"With {', '.join(others)} it trains: " if others else "Then train with it: "
    doc += f"python train.py {script}\n"
    args = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Args")
    shared = next(i for i, line in enumerate(lines) if line.startswith("    # The same in every script"))
    length = next(i for i, line in enumerate(lines) if line.startswith("    max_response_tokens"))
    settings = "\n".join(
        [f"    max_response_tokens: int = {LENGTH}", lines[length + 1], "", *lines[args.lineno : shared]]
    ).rstrip()
    parts = [
        f'"""{doc}"""\n',
        "import math\nfrom dataclasses import dataclass\nfrom typing import Literal\n",
        "import torch\nfrom torch import Tensor\n",
        f"\n@dataclass\nclass Args:\n{without_ranges(settings)}\n",
    ]
    for name, source in functions(script).items():
        if name in HELPERS:
            parts.append(f"\n{source}\n")
        elif name in mine:
            body = ast.parse(source).body[0].body[0]
            head = "\n".join(source.splitlines()[: body.lineno - 1])
            task = f'    """{mine[name].task}"""\n    raise NotImplementedError("yours to write")\n'
            parts.append(f"\n{head}\n{task}")
    return "\n".join(parts)


def blank_loop() -> str:
    """loop.py without its solutions."""
    text = solution_path("loop").read_text()
    lines, tasks = text.splitlines(), {e.function: e.task for e in EXERCISES if e.script == "loop"}
    for node in reversed([n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]):
        body = [f'    """{tasks[node.name]}"""', '    raise NotImplementedError("yours to write")']
        lines[node.body[0].lineno - 1 : node.end_lineno] = body
    return "\n".join(lines) + "\n"


def loop(script: str) -> str:
    """A script that imports its exercises from the student's files."""
    text = (ROOT / f"{script}.py").read_text()
    lines, asked = text.splitlines(keepends=True), needed(script)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef) and node.name in {exercise.function for exercise in asked}:
            del lines[node.lineno - 1 : node.end_lineno + 2]  # and the two empty lines below it
    imports = "".join(f"from {exercise.script} import {exercise.function}  # yours\n" for exercise in asked)
    text = "".join(lines).replace("\nimport torch\n", f"\n{imports}\nimport torch\n", 1)
    return text.replace(SIGNAL_LINE, SIGNAL_CALL) if "has_signal" in imports else text


def reference() -> dict[str, list[list[dict[str, float]]]]:
    """By method, the logs of its runs, one per seed, up to the number of steps in `train.py`."""
    found: dict[str, list[list[dict[str, float]]]] = {script: [] for script in SCRIPTS}
    for run in json.loads(RUNS.read_text()):
        if run["method"] in found:
            log = [{name: row[name] for name in ("step", *PANELS) if name in row} for row in run["log"]]
            found[run["method"]].append([row for row in log if row["step"] <= STEPS])
    return found


def rounded(value: Any) -> Any:
    """Plain data with numbers rounded to seven digits."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def known(exercise: Exercise) -> dict[str, Any]:
    """The answers that students get, rounded, because results are compared with a tolerance."""
    one = answers(exercise, HANDOUT_SEED)
    return one | {name: rounded(one[name]) for name in ("right", "mistakes", "ignored")}


def make(folder: Path, key: str | None = None, logs: Path = LOGS) -> None:
    """Write the handout; `logs` is the file with the silent bugs' runs."""
    (folder / "loops").mkdir(parents=True)
    for script in SCRIPTS:
        (folder / f"{script}.py").write_text(blank(script))
    (folder / "loop.py").write_text(blank_loop())
    answer = {}
    for exercise in EXERCISES:
        if exercise.function == "changed":
            methods = {method: known(replace(exercise, method=method)) for method in CHANGES}
            answer[exercise.name] = {"level": exercise.level, "methods": methods}
        else:
            answer[exercise.name] = known(exercise)
    page = (HERE / "handout.md").read_text().splitlines(keepends=True)
    (folder / "README.md").write_text("".join(x for x in page if key is not None or "variants" not in x))
    if key is not None:
        (folder / "variants.py").write_text(blank_variants(key))
        answer |= {variant.name: known(variant) for variant in variants(key)}
    (folder / "answers.json").write_text(json.dumps(answer) + "\n")
    for file, name in COPIED.items():
        text = (HERE / file).read_text()
        (folder / name).write_text(text.replace("from notebooks.exercises.", "from "))
    shutil.copy(logs, folder / LOGS.name)
    text = (folder / "loops" / "loop.py").read_text()
    for old, new in (("import train ", "import changed "), (" train(", " changed("), ('"grpo"', "loop.CHANGE")):
        text = text.replace(old, new)
    (folder / "loops" / "changed.py").write_text(
        text.replace("import importlib\n", "import importlib\n\nimport loop\n")
    )
    (folder / "reference.json").write_text(json.dumps(rounded(reference())) + "\n")
    (folder / "silent_bugs_answers.json").write_text(blank_form())
    for script in SCRIPTS:
        (folder / "loops" / f"{script}.py").write_text(loop(script))
    hidden = shutil.ignore_patterns("__pycache__", "compare.py", "mutate.py", "mutations", "equivalent.json")
    for name in ("common", "tools", "worlds"):
        shutil.copytree(ROOT / name, folder / name, ignore=hidden)
    shutil.copy(ROOT / "requirements.txt", folder)


def main(args: Args) -> None:
    if args.folder.exists():
        fail(f"{args.folder} exists: name a new folder.")
    check_key(args.key, args.bugs)
    logs = class_logs(args.key) if args.bugs else LOGS
    if not logs.exists():
        fail("the silent bugs of this key are not there: run python -m notebooks.exercises.make_bugs --key first.")
    make(args.folder, args.key, logs)
    count = len(EXERCISES) + (0 if args.key is None else len(KINDS))
    say(f"{args.folder}: {count} functions to write; check them with: pytest {args.folder}")


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
