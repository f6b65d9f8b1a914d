"""What each claim said, from when on, and why that changed.

`register.jsonl` has a line for each version of a claim: date and commit, the statement and the rule, the verdict that
was `known` when it was written (null: none), and `why` it differs from the version before. Other words for the same are
no version: they go into the claim's last line. Whoever changes what a claim says or how it is judged adds a line. The
lines up to 2026-11-23 were written down from the repository's history.
"""

import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from common.cli import fail
from tools.scripts import docstring

HERE = Path(__file__).parent
FILE = HERE / "register.jsonl"
PARTS = ("Said by:", "Tested:", "Rule:")  # what the paragraphs of a claim's docstring begin with, after the claim
UNTESTABLE = "Not testable here: "  # and the last one of a claim that this world cannot test


def paragraphs(name: str) -> list[str]:
    """Those of a claim's docstring, each in one line."""
    return [" ".join(paragraph.split()) for paragraph in docstring(HERE / f"{name}.py").split("\n\n")]


def says(name: str) -> dict[str, str]:
    """The statement and the rule of a claim as they are now."""
    statement, *rest = paragraphs(name)
    return {"statement": statement, "rule": next(p for p in rest if p.startswith(PARTS[-1])).removeprefix("Rule: ")}


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
    lines, before = [name], {"statement": "", "rule": ""}
    for version in versions()[name]:
        known = f", when the verdict was {version['known']}" if version["known"] else ""
        lines.append(
            f"  {version['version']}. {version['date']}, {version['commit']}{known}. {version['why']}".rstrip()
        )
        lines += [f"     {part}: {version[part]}" for part in before if version[part] != before[part]]
        before = version
    return "\n".join(lines)
