"""Copy the lessons without outputs, so that nobody sees a result before predicting it.

    python -m notebooks.blank my-lessons          # then: jupyter lab my-lessons

Each prediction has its own cell, which writes it to `predictions.jsonl` with the time (predictions.py); the cell below
does not run without it. That cell's code and the text after it give the answer away, so they are folded. The other
cells run as in the lesson, as long as the folder and this repository are not moved.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from common.cli import fail, say

LESSONS = Path(__file__).parent
FOLD = "<details><summary>Open after the cell has run</summary>\n\n", "\n\n</details>\n\n"


def folded(text: str) -> str:
    """Markdown with everything before the next heading or prediction folded."""
    end = re.search(r"^(## |> \*\*Predict)|\Z", text, re.M).start()
    return f"{FOLD[0]}{text[:end].rstrip()}{FOLD[1]}{text[end:]}" if end else text


def blank(notebook: dict[str, Any], lesson: str, folder: Path) -> dict[str, Any]:
    """A notebook without outputs, which finds the lessons' helpers from another folder, with a cell for each
    prediction above the cell that answers it."""
    cells: list[dict[str, Any]] = []
    number, answered = 0, False  # `answered`: between a prediction and the text after its answer
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
            if cells and "**Predict.**" in "".join(cells[-1]["source"]):
                number += 1
                source = [f'predictions.predict({number}, r"""\n', '""")']  # raw: it may hold LaTeX
                cells.append(cell | {"id": f"prediction-{number}", "source": source})
                cell["source"] = [f"predictions.answer({number})\n", *cell["source"]]
                answered = True
            if answered:
                cell["metadata"] = cell["metadata"] | {"jupyter": {"source_hidden": True}}
        elif answered:
            cell["source"] = folded("".join(cell["source"])).splitlines(keepends=True)
            answered = False
        cells.append(cell)
    path = os.path.relpath(LESSONS, folder)
    first = next(cell for cell in cells if cell["cell_type"] == "code")
    imports = ["import sys\n", "\n", f"sys.path.insert(0, {path!r})\n", "from predictions import Predictions\n", "\n"]
    first["source"] = [*imports, f"predictions = Predictions({lesson!r})\n", "\n", *first["source"]]
    return notebook | {"cells": cells}


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    lessons = sorted(LESSONS.glob("[0-9]*.ipynb"))
    for lesson in lessons:
        copy = blank(json.loads(lesson.read_text(encoding="utf-8")), lesson.stem, folder)
        (folder / lesson.name).write_text(json.dumps(copy, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    say(f"{folder}: {len(lessons)} lessons without outputs")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        fail("name the folder to create: python -m notebooks.blank my-lessons")
    if Path(sys.argv[1]).exists():
        fail(f"{sys.argv[1]} exists: name a new folder.")
    main(Path(sys.argv[1]))
