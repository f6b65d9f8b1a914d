"""The site's files: a page for everything, links, sizes. Not part of `pytest -n 3`, which builds no site."""

import html
import re
from pathlib import Path

from tools.scripts import ROOT, parents, script_path
from tools.site import __main__ as build
from tools.site.pages import Renderer

import pytest
from test_site import PAGES, SITE

SCRIPTS = list(parents())


def test_there_is_a_page_for_everything():
    for name in SCRIPTS:
        assert f"{name}.html" in PAGES, f"{name} has no page"
    for world in ROOT.glob("worlds/*/README.md"):
        assert f"worlds-{world.parent.name}-readme.html" in PAGES
    assert {"index.html", "compare.html", "read-reinforce.html", "lessons.html", "docs.html"} <= set(PAGES)
    claims = (SITE / "claims.html").read_text()
    for claim in ROOT.glob("claims/*.py"):
        if "\nRule:" in claim.read_text():
            assert claims.count(f'id="{claim.stem}"') == 1, f"{claim.stem} is not on the page of claims once"


def test_the_site_is_small():
    files = [path for path in SITE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8e6
    first = (SITE / "index.html", SITE / "site.css", SITE / "site.js")
    assert sum(path.stat().st_size for path in first) < 300e3


def test_no_link_is_dead():
    pages = {name: (SITE / name).read_text() for name in PAGES}
    anchors = {name: set(re.findall(r'\bid="([^"]+)"', text)) for name, text in pages.items()}
    dead = []
    for name, text in pages.items():
        for target in map(html.unescape, re.findall(r'(?:href|src)="([^"]+)"', text)):
            if re.match(r"https?:|mailto:|data:", target):
                continue
            file, _, anchor = target.partition("#")
            file = file or name
            known = anchors.get(file, set()) | ({anchor} if file == "compare.html" else set())
            if file.removesuffix(".html") in SCRIPTS:  # the page shows source lines
                known |= {f"L{i + 1}" for i in range(len(script_path(Path(file).stem).read_text().splitlines()))}
            if not (SITE / file).exists() or (anchor and anchor not in known):
                dead.append(f"{name}: {target}")
    assert not dead, "\n".join(dead)


def test_lessons_have_no_answers():
    lessons = [page for page in PAGES if re.match(r"notebooks-\d", page)]
    assert len(lessons) >= 11
    for page in lessons:
        assert "<summary>Answer" not in (SITE / page).read_text(), f"{page} shows an answer"


def test_the_page_of_the_readme_gets_the_files(tmp_path):
    assert (
        "git clone https://github.com/a/b &amp;&amp; cd b"
        in Renderer(tmp_path, "https://github.com/a/b").page("README.md")[1]
    )
    assert "git clone" not in Renderer(tmp_path, "").page("README.md")[1], "no address is known"


def test_links_stay_on_the_site_or_lead_to_the_repository(tmp_path, monkeypatch):
    monkeypatch.delenv("GITHUB_SHA", raising=False)
    renderer = Renderer(tmp_path, "https://github.com/a/b")
    assert renderer.link("runs.md#metricsjsonl", "docs/real-models.md") == "docs-runs.html#metricsjsonl"
    assert renderer.link("../claims/std_favors_extremes.py", "reports/claims.md") == "claims.html#std_favors_extremes"
    assert renderer.link("../common/run.py", "docs/runs.md") == "https://github.com/a/b/blob/main/common/run.py"
    assert renderer.link("benchmarks", "README.md") == "https://github.com/a/b/tree/main/benchmarks"
    assert renderer.link("nowhere.md", "README.md") == "" == Renderer(tmp_path, "").link("common/run.py", "README.md")


def test_a_folder_with_other_files_is_not_replaced(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SystemExit) as end:
        build.main(build.Args(out=tmp_path))
    assert end.value.code == 2 and "holds no site" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").exists()
