"""Gradebooks as CSV files: the one that Canvas imports (Grades, Import), and the one that it exports.

Canvas finds a student by ID, then by SIS Login ID, then by name (lib/gradebook_importer.rb in instructure/canvas-lms).
"""

import csv
import io
import re
from pathlib import Path
from typing import NamedTuple

from common.cli import fail, printable

COLUMNS = ["Student", "ID", "SIS Login ID", "Section"]  # columns that a gradebook must have


class Roster(NamedTuple):
    """The parts of an exported gradebook that the imported file must repeat."""

    columns: list[str]  # about the student, up to "Section"
    students: dict[str, list[str]]  # by lower-case SIS Login ID, their cells in these columns
    assignment: str  # the title of the assignment's column, with its number in Canvas if it has one

    def find(self, login: str) -> list[str] | None:
        return self.students.get(login.casefold())


def cell(text: str) -> str:
    """Text for a spreadsheet, made safe from being read as a formula."""
    return "'" * text.startswith(("=", "+", "-", "@")) + printable(text)


def table(rows: list[list[object]]) -> str:
    """Rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def read_roster(path: Path | None, assignment: str) -> Roster:
    """The students in a gradebook exported from Canvas; none without a file."""
    if path is None:
        return Roster(COLUMNS, {}, assignment)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        fail(f"{path} cannot be read: pass a CSV file that was exported from Canvas's gradebook.")
    first = text.split("\n", 1)[0]
    delimiter = ";" if first.count(";") > first.count(",") else ","
    header, *rows = list(csv.reader(io.StringIO(text), delimiter=delimiter)) or [[]]
    if missing := [name for name in COLUMNS if name not in header]:
        fail(f"{path} has no column {missing[0]!r}: export the whole gradebook from Canvas and pass that file.")
    end, login = header.index("Section") + 1, header.index("SIS Login ID")
    people = {row[login].casefold(): row[:end] for row in rows if len(row) >= end and row[login].strip()}
    numbered = re.compile(rf"{re.escape(assignment)}( \(\d+\))?")
    return Roster(header[:end], people, next(filter(numbered.fullmatch, header[end:]), assignment))


def gradebook(percent: dict[str, float], most: int, roster: Roster) -> str:
    """The CSV file to import: a row for each student who handed in.

    A student who is not in the roster gets a row with only the login. Canvas then asks who it is.
    """
    rows: list[list[object]] = [[*roster.columns, roster.assignment]]
    rows.append(["    Points Possible", *[""] * (len(roster.columns) - 1), most])
    for login, score in percent.items():
        alone = {"Student": cell(login), "ID": login if login.isdecimal() else "", "SIS Login ID": cell(login)}
        rows.append([*(roster.find(login) or [alone.get(name, "") for name in roster.columns]), score])
    return table(rows)
