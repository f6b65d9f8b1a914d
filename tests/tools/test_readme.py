"""The pages' statements about the code are true, and their links resolve."""

import re

from tools.reports import REPORTS
from tools.scripts import ROOT, parents, script_path

import pytest

FOUND = [path.relative_to(ROOT) for path in ROOT.rglob("*.md")]
PAGES = sorted(str(path) for path in FOUND if not any(p == "runs" or p.startswith(".") for p in path.parts))


def test_folders_are_as_large_as_the_readme_says():
    """Folder sizes in the README are within 5 %, in lines of Python."""
    found = re.findall(r"^- (`.+`): .*\(([\d,]+)(?: lines)?\)$", (ROOT / "README.md").read_text(), re.M)
    assert len(found) == 7, f"these folders have a size: {found}"
    for folders, size in found:
        paths = [
            path
            for name in re.findall("`(.+?)`", folders)
            for path in ROOT.glob(f"{name}**/*.py" if "/" in name else name)
        ]
        lines = sum(len(path.read_text().splitlines()) for path in paths if "ipynb_checkpoints" not in str(path))
        assert abs(lines / int(size.replace(",", "")) - 1) < 0.05, f"{folders} has {lines:,} lines, not {size}"


def test_quoted_lines_are_in_the_code():
    """Every answer that quotes a line of code names the file that has it."""
    page = (ROOT / "notebooks/README.md").read_text()
    quotes = re.findall(r"`([\w/]+\.py)`:\n```python\n(.*?)\n```", page, re.S)
    assert len(quotes) == page.count("```python") >= 13
    for file, line in quotes:
        assert f"\n{line}" in (ROOT / file).read_text(), f"{file} has no line {line!r}"


def slug(heading):
    """A heading's anchor on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def broken(page):
    """A page's relative links that lead nowhere, as "file" or "file#anchor"."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.M | re.S)
    found = []
    for file, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]+))?\)", text):
        if re.match(r"https?:|mailto:|\.\./\.\./actions/", file):  # the last kind is GitHub's own
            continue
        target = (ROOT / page).parent / file if file else ROOT / page
        headings = re.findall(r"^#+ (.+)$", target.read_text(), re.M) if anchor and target.suffix == ".md" else []
        if not target.exists() or (anchor and anchor not in map(slug, headings)):
            found.append(f"{file}#{anchor}" if anchor else file)
    return found


def test_there_are_pages_to_check():
    assert {"README.md", "reports/claims.md", "docs/runs.md"} <= set(PAGES), f"only these were found: {PAGES}"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    assert not broken(page), f"{page} has links to nothing: {', '.join(broken(page))}"


@pytest.mark.parametrize("page", sorted(path.name for path in REPORTS.glob("*.md")))
def test_a_report_says_how_and_when_it_was_made(page):
    top = (REPORTS / page).read_text().splitlines()[:4]
    assert re.match(r"# ", top[0]) and any(
        re.match(r"Made by `python (-m )?\S+.*` \(\d{4}-\d\d-\d\d( to \d{4}-\d\d-\d\d)?\)\.", line) for line in top
    ), f"reports/{page}: 'Made by `COMMAND` (DATE).' is missing below its title"


def test_all_questions_are_answered():
    page = (ROOT / "notebooks/README.md").read_text()
    assert re.findall(r"^\*\*(\d+)\.", page, re.M) == [str(i) for i in range(1, 16)]


def test_most_scripts_are_as_long_as_the_readme_says():
    low, high = map(int, re.search(r"Most have (\d+) to (\d+) lines", (ROOT / "README.md").read_text()).groups())
    lengths = {name: len(script_path(name).read_text().splitlines()) for name in parents()}
    other = {name: lines for name, lines in lengths.items() if not low <= lines <= high}
    assert len(other) <= len(lengths) / 10, f"these have other lengths: {other}"
    assert min(lengths.values()) - low < 10, f"no script has about {low} lines"


def test_the_citation_is_that_of_the_latest_release():
    cited = dict(re.findall(r'^(version|date-released): "(.+)"$', (ROOT / "CITATION.cff").read_text(), re.M))
    latest = re.search(r"^## (\d{4}\.\d\d\.\d\d)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1]
    assert cited == {"version": latest, "date-released": latest.replace(".", "-")}


def test_the_readme_is_short_and_its_diff_is_real():
    page = (ROOT / "README.md").read_text()
    prose = re.sub(r"```.*?```|<table>.*?</table>|^(\||- `|!?\[!).*?$", "", page, flags=re.M | re.S)
    assert len(prose.split()) <= 700, (
        f"README.md has {len(prose.split())} words outside of code, tables and lists of files"
    )
    cells = [cell.strip() for line in page.splitlines() if line.startswith("|") for cell in line.split("|")]
    assert max(map(len, cells)) <= 60 and page.count("|---") == page.count("\n|---") * 4, (
        "a wide cell, or another table"
    )
    (diff,) = re.findall(r"```diff\n(.*?)```", page, re.S)
    scripts = {"-": (ROOT / "grpo.py").read_text(), "+": (ROOT / "dr_grpo.py").read_text()}
    for line in filter(None, diff.splitlines()):
        for sign, text in scripts.items():
            assert (f"\n{line[1:]}\n" in text) == (line[0] in (sign, " ")), f"README's diff is not real: {line}"
