"""What each claim said, since when, and why that changed.

`register.jsonl` has a line for each version of a claim: date and commit, the name that it `was` called then if it has
another now, the verdict that was `known` when it was written (null: none), `why` it differs from the version before,
the paragraphs of its docstring (who says it, what is tested, the rule), a hash of its file's code, and its `arms`,
where these are flags. The last line of a claim that follows from formulas names the `test` that it has become. Whoever
changes a statement, a rule, or code that decides adds a line: a verdict keeps the hash of what it was `judged_by`, and
the claim cannot be judged again under the same version if that has changed. (What a claim imports is not in the hash;
the tests recompute verdicts and compare stored arms.) If only the source, or the wording of the test, changes, edit
the last line. The lines up to 2026-11-23 were written down from the repository's history; in these, "contradicted" was
"refuted".
"""

import ast
import hashlib
import importlib
import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from common.cli import fail
from tools.compare import code_lines
from tools.scripts import docstring

HERE = Path(__file__).parent
FILE = HERE / "register.jsonl"
PARTS = ("Said by:", "Tested:", "Rule:")  # what the paragraphs of a claim's docstring begin with, after the claim
SAID = ("statement", "source", "tested", "rule", "code", "arms", "test")  # what a version has of its claim
SHOWN = ("deciding", "effect", "draw")  # functions of a claim that only show results
UNTESTABLE = "Not testable here: "  # and the last one of a claim that this world cannot test


def paragraphs(name: str) -> list[str]:
    """Those of a claim's docstring, each in one line."""
    return [" ".join(paragraph.split()) for paragraph in docstring(HERE / f"{name}.py").split("\n\n")]


def not_testable(name: str) -> str:
    """Why this world cannot test a claim, from its docstring; "" if it can."""
    return next((p.removeprefix(UNTESTABLE) for p in paragraphs(name) if p.startswith(UNTESTABLE)), "")


def says(name: str) -> dict[str, Any]:
    """What a claim is now: its statement, who says it, what is tested, the rule, a hash of its code, and its arms."""
    statement, *rest = paragraphs(name)
    found = {"statement": statement}
    for key, part in zip(("source", "tested", "rule"), PARTS, strict=True):
        found[key] = next(p for p in rest if p.startswith(part)).removeprefix(part).strip()
    arms = getattr(importlib.import_module(f"claims.{name}"), "ARMS", {})
    by_runs = {"arms": arms} if arms and all(isinstance(words, str) for words in arms.values()) else {}
    return found | {"code": code_hash((HERE / f"{name}.py").read_text())} | by_runs


def code_hash(text: str) -> str:
    """Of a Python file without comments and docstrings."""
    return hashlib.sha256("\n".join(code_lines(text)).encode()).hexdigest()[:16]


def judged_by(name: str) -> str:
    """A hash of what decides a claim: its statement, rule, arms and code, and why it cannot be tested, if so."""
    text, now = (HERE / f"{name}.py").read_text(), says(name)
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom) or getattr(node, "name", "") in SHOWN:
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    decides = (now["statement"], now["rule"], not_testable(name), repr(now.get("arms")), code_hash("\n".join(lines)))
    return hashlib.sha256("\n".join(decides).encode()).hexdigest()[:16]


@cache
def versions() -> dict[str, list[dict[str, Any]]]:
    """The versions of each claim, the oldest first."""
    found = defaultdict(list)
    for line in FILE.read_text(encoding="utf-8").splitlines():
        version = json.loads(line)
        found[version["claim"]].append(version)
    return dict(found)


def changed_after_a_result() -> list[dict[str, Any]]:
    """The versions that were written when a verdict was known."""
    return [version for of_claim in versions().values() for version in of_claim if version["known"]]


def history(name: str) -> str:
    """All versions of a claim in words."""
    if name not in versions():
        fail(f"{name} is not a claim: python -m claims lists them.")
    lines, before = [name], {}
    for version in versions()[name]:
        known = f", when the verdict was {version['known']}" if version["known"] else ""
        lines.append(
            f"  {version['version']}. {version['date']}, {version['commit']}{known}. {version['why']}".rstrip()
        )
        lines += [f"     {part}: {version.get(part)}" for part in SAID if version.get(part) != before.get(part)]
        before = version
    return "\n".join(lines)
