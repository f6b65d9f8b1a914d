"""What the pages for readers say of the code is so."""

import json
import re
from pathlib import Path

from benchmarks import ablation, methods, stress
from tools.scripts import parents, tricks

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ["notebooks/README.md", "notebooks/teachers-guide.md"]
PAGES = ["README.md", *NOTEBOOKS, *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


def test_quoted_lines_are_in_the_code():
    """Every answer to learners that shows a line names its file, and the line stands there."""
    page = (ROOT / "notebooks/README.md").read_text()
    quotes = re.findall(r"`([\w/]+\.py)`:\n```python\n(.*?)\n```", page, re.S)
    assert len(quotes) == page.count("```python") >= 13
    for file, line in quotes:
        assert f"\n{line}" in (ROOT / file).read_text(), f"{file} has no line {line!r}"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert link.startswith("http") or (ROOT / page).parent.joinpath(link).exists(), f"{page}: {link}"
    for file, anchor in re.findall(r"\]\(([^)#]*)#([^)]+)\)", text):
        target = (ROOT / page).parent / file if file else ROOT / page
        headings = re.findall(r"^#+ (.+)$", target.read_text(), re.M)
        slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert anchor in slugs, f"{page}: #{anchor}"


def test_all_questions_are_answered():
    page = (ROOT / "notebooks/README.md").read_text()
    assert re.findall(r"^\*\*(\d+)\.", page, re.M) == [str(i) for i in range(1, 16)]


def test_tables_show_what_was_measured():
    measured = {name: json.loads((ROOT / f"benchmarks/{name}.json").read_text()) for name in ("methods", "stress")}
    page = (ROOT / "reports/methods.md").read_text()
    assert methods.table(measured["methods"]) in page
    for recipe in filter(tricks, parents()):
        assert ablation.table(recipe, json.loads((ROOT / f"benchmarks/ablation_{recipe}.json").read_text())) in page
    assert (ROOT / "reports/stress.md").read_text() == stress.page(measured["stress"])


def test_the_readme_is_short_and_its_diff_is_real():
    page = (ROOT / "README.md").read_text()
    assert len(page.splitlines()) - 2 * len(parents()) <= 126  # each script has a line of the tree and of the table
    (diff,) = re.findall(r"```diff\n(.*?)```", page, re.S)
    scripts = {"-": (ROOT / "grpo.py").read_text(), "+": (ROOT / "dr_grpo.py").read_text()}
    for line in filter(None, diff.splitlines()):
        for sign, text in scripts.items():
            assert (f"\n{line[1:]}\n" in text) == (line[0] in (sign, " ")), line
