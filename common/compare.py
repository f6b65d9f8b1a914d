"""Scripts side by side: what one method changes in another.

python -m common.compare                  # the family tree, with the lines that differ
python -m common.compare grpo dapo        # the differing lines of two scripts, in two columns
"""

import ast
import difflib
import re
import shutil
import sys
from pathlib import Path

from common.cli import fail

ROOT = Path(__file__).parent.parent
SCRIPTS = ["reinforce", "ppo", "grpo", "rloo", "dr_grpo", "dapo", "cispo", "gspo", "gmpo", "dppo", "maxrl"]


def read(name: str) -> tuple[str, list[str]]:
    """The docstring of a script, and all lines after it."""
    path = ROOT / f"{name.removesuffix('.py')}.py"
    if path.stem not in SCRIPTS:
        fail(f"{name} is none of the scripts: {', '.join(SCRIPTS)}.")
    text = path.read_text()
    tree = ast.parse(text)
    return ast.get_docstring(tree) or "", text.splitlines()[tree.body[0].end_lineno :]


def parent(name: str) -> str | None:
    """The script that a docstring says it differs from."""
    match = re.search(r"parent (\w+)\.py", read(name)[0])
    return match and match[1]


def count(a: str, b: str) -> int:
    """Lines of code that one script adds to the other and takes from it, docstrings apart."""
    changes = difflib.SequenceMatcher(None, read(a)[1], read(b)[1], autojunk=False).get_opcodes()
    return sum(i2 - i1 + j2 - j1 for tag, i1, i2, j1, j2 in changes if tag != "equal")


def family_tree(name: str = "reinforce", depth: int = 0) -> str:
    """One line per script: its place, and how many lines differ from its parent."""
    above = parent(name)
    note = f"{count(above, name)} lines from {above}.py" if above else "the root"
    lines = [f"{'    ' * depth}{name}.py".ljust(24) + note]
    lines += [family_tree(child, depth + 1) for child in SCRIPTS if parent(child) == name]
    return "\n".join(lines)


def print_side_by_side(a: str, b: str) -> None:
    """The differing lines of two scripts in two columns, each hunk with two lines around it."""
    left, right = read(a)[1], read(b)[1]
    width = max(40, (shutil.get_terminal_size((200, 50)).columns - 3) // 2)
    print(f"{a.removesuffix('.py')}.py".ljust(width) + f" │ {b.removesuffix('.py')}.py")
    for group in difflib.SequenceMatcher(None, left, right, autojunk=False).get_grouped_opcodes(2):
        print("─" * width + "─┼─" + "─" * width)
        for tag, i1, i2, j1, j2 in group:
            for k in range(max(i2 - i1, j2 - j1)):
                mine = left[i1 + k] if i1 + k < i2 else ""
                other = right[j1 + k] if j1 + k < j2 else ""
                bar = "│" if tag == "equal" else "┃"
                print(f"{mine[:width].ljust(width)} {bar} {other[:width]}".rstrip())


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(family_tree())
    elif len(sys.argv) == 3:
        print_side_by_side(*sys.argv[1:])
    else:
        fail("name two scripts, or none for the family tree: python -m common.compare grpo dapo")
