"""Copy the lessons without outputs, so that nobody sees a result before predicting it.

    python -m notebooks.blank my-lessons          # then: jupyter lab my-lessons

The cells of a copy run as those of the lesson do, as long as the folder and this repository stay where they are.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from common.cli import fail, say

LESSONS = Path(__file__).parent


def blank(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A notebook without outputs, which finds the lessons' helpers from another folder."""
    path = os.path.relpath(LESSONS, folder)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell in code:
        cell |= {"outputs": [], "execution_count": None}
    code[0]["source"] = ["import sys\n", "\n", f"sys.path.insert(0, {path!r})\n", "\n", *code[0]["source"]]
    return notebook


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    lessons = sorted(LESSONS.glob("[0-9]*.ipynb"))
    for lesson in lessons:
        copy = blank(json.loads(lesson.read_text(encoding="utf-8")), folder)
        (folder / lesson.name).write_text(json.dumps(copy, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    say(f"{folder}: {len(lessons)} lessons without outputs")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        fail("name the folder to create: python -m notebooks.blank my-lessons")
    if Path(sys.argv[1]).exists():
        fail(f"{sys.argv[1]} exists: name a new folder.")
    main(Path(sys.argv[1]))
