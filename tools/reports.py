"""Measurements are in reports/: a JSON file for each, and the tables and pictures made from it."""

import json
import re
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

from tools.scripts import ROOT

REPORTS = ROOT / "reports"


def read_report(name: str, missing: Any = None) -> Any:
    """The contents of reports/NAME.json, or `missing` if there is no such file."""
    path = REPORTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else missing


def write_report(name: str, content: Any) -> None:
    """Write reports/NAME.json; a list gets one line per item."""
    if isinstance(content, list):
        text = "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in content) + "\n]\n"
    else:
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    (REPORTS / f"{name}.json").write_text(text)


def today() -> str:
    return date.today().isoformat()


def heading(title: str, command: str, dates: Iterable[str]) -> str:
    """The top of a Markdown report: its title, the command that made it, and the days of the measurements."""
    days = sorted(set(dates))
    period = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "no measurement yet"
    return f"# {title}\n\nMade by `{command}` ({period}).\n"


def replace_table(page: Path, start: str, table: str) -> None:
    """Replace the table of a Markdown page whose first line starts with `start`; without one, nothing changes."""
    old = re.compile(rf"^{re.escape(start)}.*?\n(?=\n|\Z)", re.DOTALL | re.MULTILINE)
    page.write_text(old.sub(lambda _: table, page.read_text()))
