"""Predictions, written down with the time before the cell that answers them runs.

A lesson without outputs (blank.py) has a cell for each prediction, and the cell below does not run without it. Both
write a line to `predictions.jsonl` next to the lesson. This counts the predictions in several such files:

    python -m notebooks.predictions class/*/predictions.jsonl

Times come from the student's clock, and the file can be edited: it helps honest students and proves nothing.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FILE = "predictions.jsonl"


class NoPredictionError(Exception):
    """A cell with the answer runs without a prediction; a notebook shows only the sentence."""

    def _render_traceback_(self) -> list[str]:
        return [f"error: {self}"]


class Predictions:
    """The predictions of one lesson, in the folder where it runs."""

    def __init__(self, lesson: str) -> None:
        self.lesson = lesson

    def rows(self) -> list[dict[str, Any]]:
        """The lines about this lesson."""
        lines = Path(FILE).read_text(encoding="utf-8").splitlines() if Path(FILE).exists() else []
        return [row for row in map(json.loads, lines) if row["lesson"] == self.lesson]

    def write(self, number: int, **more: Any) -> None:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        row = {"time": time, "lesson": self.lesson, "prediction": number, **more}
        with Path(FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def predict(self, number: int, text: str) -> None:
        """Write a prediction down, with whether its answer was still hidden."""
        if not text.strip():
            raise NoPredictionError("write your prediction and its reason between the quotes.")
        shown = any(row["prediction"] == number and "text" not in row for row in self.rows())
        self.write(number, before=not shown, text=text.strip())
        if shown:
            print("Written down, after its answer was shown.")
        else:
            print("Written down.")

    def answer(self, number: int) -> None:
        """Record that the answer was shown; without a prediction, the cell stops with an error."""
        if not any(row["prediction"] == number and "text" in row for row in self.rows()):
            raise NoPredictionError(f"run the cell with prediction {number} first, with your words between the quotes.")
        self.write(number, answer="shown")


def main(paths: list[Path]) -> None:
    from common.cli import say  # a lesson can only import these after it has found this repository
    from notebooks.exercises.files import Unusable, read

    for path in paths:
        try:
            rows = [json.loads(line) for line in read(path).splitlines()]
            made = [((row["lesson"], row["prediction"]), row["before"]) for row in rows if "text" in row]
            in_time = {which for which, before in made if before}
            late = {which for which, _ in made} - in_time
        except (Unusable, ValueError, KeyError, TypeError, RecursionError):
            say(f"{path}: not a file of predictions")
            continue
        say(f"{path}: {len(in_time)} predictions before their answers, {len(late)} only afterwards")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("error: name the files: python -m notebooks.predictions class/*/predictions.jsonl")
    main([Path(word) for word in sys.argv[1:]])
