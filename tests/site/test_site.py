"""Use the site as a person would, in headless Chromium. Not part of `pytest -n 3`, which has no browser.

python -m tools.site && pytest tests/site
"""

import os
import random
import re
import shutil
from pathlib import Path

from claims.questions import IDENTITIES
from claims.register import changed_after_a_result
from tools import compare, fingerprint, traits
from tools.scripts import ROOT, load, parents
from tools.site.pages import Renderer

import pytest
from axe_playwright_python.sync_playwright import Axe

SITE = Path(os.environ.get("SITE", ROOT / "site"))
SHOTS = Path(os.environ.get("SITE_SCREENSHOTS", ROOT / "runs/site-screenshots"))
assert (SITE / "index.html").exists(), f"{SITE} holds no site: run python -m tools.site first."
PAGES = sorted(path.name for path in SITE.glob("*.html"))
SCRIPTS = list(parents())
SIX = ("index.html", "grpo.html", "compare.html#grpo/dapo", "read-grpo.html", "sliders.html", "claims.html")


class Visit:
    """A page of the site in a browser window, and the errors that occurred on it."""

    def __init__(self, page):
        self.page, self.problems = page, []
        page.on("console", lambda m: self.problems.append(f"console: {m.text}") if m.type == "error" else None)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("requestfailed", self.failed)
        page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else self.problems.append(r.url))

    def failed(self, request):
        if "ERR_ABORTED" not in str(request.failure):  # the test left the page while it was loading
            self.problems.append(f"failed: {request.url}: {request.failure}")

    def open(self, url):
        """Open a page from its file, wait for its scripts, and return it."""
        self.page.goto(f"file://{SITE.resolve()}/{url}")
        self.page.reload()  # a change after # alone does not reload the page
        self.page.wait_for_selector("html[data-ready]", state="attached")
        return self.page


@pytest.fixture
def visit(browser, request):
    """A browser window, by default 1200 pixels wide and in the light scheme."""
    width, scheme = getattr(request, "param", (1200, "light"))
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(600_000)  # a slow machine must not fail the test
    yield Visit(context.new_page())
    context.close()


@pytest.mark.parametrize("visit", [(360, "light")], indirect=True)
def test_every_page_opens_and_fits_a_phone(visit):
    wide = []
    for name in PAGES:
        page = visit.open(name)
        if (width := page.evaluate("document.documentElement.scrollWidth")) > 360:
            wide.append(f"{name}: {width} pixels")
    assert not visit.problems, "\n".join(visit.problems)
    assert not wide, "pages that scroll sideways: " + ", ".join(wide)


def printed(left, right, capsys, monkeypatch):
    """The rows of `python -m tools.compare` as (left, right, differs), hunk by hunk."""
    monkeypatch.setenv("COLUMNS", "400")
    compare.main([left, right])
    text = capsys.readouterr().out
    rows, width = [], (400 - 3) // 2
    for line in text.splitlines()[text[: text.find("┼")].count("\n") :]:
        if "┼" in line:
            continue
        # Each line is padded to its column's width, which counts combining marks as characters.
        rows.append((line[:width].rstrip(), line[width + 3 :].rstrip(), line[width + 1] == "┃"))
    return rows


READ_ROWS = """() => [...document.querySelectorAll("#diff .row")].map((row) => {
    const text = (cell) => { const copy = cell.cloneNode(true);
        copy.querySelectorAll("mark").forEach((m) => m.replaceWith("«" + m.textContent + "»"));
        return copy.textContent.trimEnd(); };
    return [text(row.querySelector(".left")), text(row.querySelector(".right")), row.classList.contains("changed")];
})"""


def joined(rows):
    """Join adjacent marks, because highlighting splits the code."""
    return [(left.replace("»«", ""), right.replace("»«", ""), differs) for left, right, differs in rows]


def test_compare_shows_what_the_command_prints(visit, capsys, monkeypatch):
    pairs = random.Random(0).sample([(a, b) for a in SCRIPTS for b in SCRIPTS if a != b], 30)
    for left, right in pairs:
        page = visit.open(f"compare.html#{left}/{right}")
        page.wait_for_selector(f'#diff[data-shown="{left}/{right}"]')
        shown, expected = joined(page.evaluate(READ_ROWS)), joined(printed(left, right, capsys, monkeypatch))
        assert [tuple(row) for row in shown] == expected, f"{left} {right}"
    assert not visit.problems, visit.problems


def test_lines_lead_to_the_repository_at_the_commit(visit, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_SHA", "abc123")
    address = Renderer(tmp_path, "https://github.com/a/b").address("blob")
    site = shutil.copytree(SITE, tmp_path / "site")
    text = re.sub(r'SOURCE = "[^"]*"', f'SOURCE = "{address}"', (site / "site.js").read_text())
    (site / "site.js").write_text(text)
    visit.page.goto(f"file://{site}/dapo.html")
    visit.page.wait_for_selector("html[data-ready]", state="attached")
    for place, line in ((".diff .changed .right", ".diff .changed .right .at"), ("[data-source] span", ".no")):
        links = visit.page.locator(line).evaluate_all("links => links.map((a) => a.href)")
        assert links, f"{place} has no links"
        assert all(re.fullmatch(r"https://github.com/a/b/blob/abc123/dapo\.py#L\d+", link) for link in links)
    number = int(links[-1].rsplit("L", 1)[1])
    assert number == len((ROOT / "dapo.py").read_text().splitlines())
    first = visit.page.locator(".diff .changed .right:has(.at)").first
    at = int(first.locator(".at").get_attribute("data-line"))
    assert first.inner_text().strip() == (ROOT / "dapo.py").read_text().splitlines()[at - 1].strip()


def test_a_comment_leads_to_its_line(visit):
    page = visit.open("dapo.html")
    link = page.locator('a[href^="#L"]', has_text="policy_loss").first
    number = link.get_attribute("href")[2:]
    link.click()
    page.wait_for_function(f"location.hash === '#L{number}' && document.querySelector('#L{number}').checkVisibility()")
    assert page.locator(f"#L{number}").inner_text().startswith(number)


def test_compare_folds_and_changes_its_address(visit):
    page = visit.open("compare.html#grpo/dapo")
    before = page.locator("#diff .row").count()
    page.locator("#diff .fold").first.click()
    assert page.locator("#diff .row").count() > before
    page.select_option("select[name=right]", "gspo")
    page.wait_for_selector('#diff[data-shown="grpo/gspo"]')
    assert page.url.endswith("#grpo/gspo") and "grpo and gspo" in page.title()
    page.click("button[name=swap]")
    page.wait_for_selector('#diff[data-shown="gspo/grpo"]')
    assert page.locator("#both tbody tr:visible").count() == 2
    assert page.locator("#fingerprint svg path").count() > 8 and page.locator("#curves svg").count() >= 3


def test_the_table_filters(visit):
    page = visit.open("index.html")
    page.select_option("#filters select[name=ratio]", "response")
    visible = page.locator("#methods tbody tr:visible td:first-child").all_inner_texts()
    assert set(visible) == {name for name in SCRIPTS if traits.ratio_level(load(name)) == "response"}
    assert {"gspo", "gmpo"} <= set(visible) and page.locator(
        "#filters output"
    ).inner_text() == f"{len(visible)} scripts"
    page.click("#filters button[type=reset]")
    page.select_option("#filters select[name=stops]", "no gradient")
    visible = page.locator("#methods tbody tr:visible td:first-child").all_inner_texts()
    assert set(visible) == {name for name in SCRIPTS if traits.stops(load(name)).startswith("no gradient")}
    page.click("#filters button[type=reset]")
    page.fill("#filters input[name=name]", "dr. grpo")
    assert page.locator("#methods tbody tr:visible td:first-child").all_inner_texts() == ["dr_grpo"]


@pytest.mark.parametrize(
    "words,url",
    [
        ("dr. grpo", "dr_grpo.html"),
        ("clip fraction metrics.jsonl", "docs-runs.html"),
        ("whitening harmless", "claims.html#"),
    ],
)
def test_search_finds(visit, words, url):
    page = visit.open("index.html")
    page.keyboard.press("/")
    page.keyboard.type(words)
    page.wait_for_selector("#results a")
    found = page.locator("#results a").evaluate_all("links => links.map((a) => a.getAttribute('href'))")
    assert any(link.startswith(url) for link in found[:5]), found
    page.keyboard.press("Escape")
    assert page.locator("#results").is_hidden()


def test_search_says_when_nothing_is_found(visit):
    page = visit.open("index.html")
    page.fill("#search", "zxqv")
    page.wait_for_selector("#results p")
    assert page.locator("#results").inner_text() == "Nothing found."


def test_claims_filter_and_open_by_address(visit):
    page = visit.open("claims.html#whitening_is_harmless")
    assert page.locator("#whitening_is_harmless details").get_attribute("open") is not None
    changed = [version for version in changed_after_a_result() if version["claim"] not in IDENTITIES]
    assert page.locator(".claim .changed").count() == len(changed) > 10
    page.select_option("#verdicts select[name=verdict]", "contradicted")
    verdicts = page.locator(".claim:visible").evaluate_all("claims => claims.map((c) => c.dataset.verdict)")
    assert len(verdicts) > 5 and set(verdicts) == {"contradicted"}


def test_sliders_multiply_what_the_scripts_compute(visit):
    page = visit.open("sliders.html")

    def set_to(name, index):
        page.locator(f"#sliders [name={name}]").evaluate(
            "(x, v) => { x.value = v; x.dispatchEvent(new Event('input', { bubbles: true })); }", index
        )

    page.select_option("#sliders select[name=b]", "dr_grpo")
    for name, index in (("group", 2), ("right", 1), ("sign", 0), ("ratio", 35), ("whole", 1), ("tokens", 15)):
        set_to(name, index)
    rows = page.locator("#product tr").all_inner_texts()[1:]
    ratio = fingerprint.RATIOS[::4][35]
    for name, row in zip(("grpo", "dr_grpo"), rows, strict=True):
        script = load(name)
        expected = fingerprint.advantages(script)["correct"][1], fingerprint.factors(script, 1.0, True, [ratio])[0]
        expected = [*expected, fingerprint.weights(script, [16])[0]]
        shown = [float(cell) for cell in row.split("\t")[1:]]
        assert shown == pytest.approx([*expected, expected[0] * expected[1] * expected[2]], rel=6e-3), name
    set_to("ratio", 41)
    assert page.locator("#product tr").all_inner_texts()[1].split("\t")[2] == "0", "beyond the clip the factor is 0"
    assert page.locator("#ages figure").count() == 2


FOCUSABLE = """() => [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")]
    .filter((e) => e.checkVisibility() && e.getClientRects().length)
    .filter((e) => e.tagName === "SUMMARY" || !e.closest("details:not([open])"))
    .map((e, i) => (e.dataset.stop = String(i), String(i)))"""


@pytest.mark.parametrize("url", ["dr_grpo.html", "compare.html#grpo/dr_grpo", "sliders.html"])
def test_the_keyboard_reaches_everything(visit, url):
    page = visit.open(url)
    wanted, reached = set(page.evaluate(FOCUSABLE)), set()
    for _ in range(len(wanted) + 5):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.stop"))
    missing = [
        page.evaluate(f"document.querySelector('[data-stop=\"{i}\"]').outerHTML.slice(0, 90)") for i in wanted - reached
    ]
    assert not missing, f"the keyboard does not reach {missing}"


def test_the_keyboard_activates_what_it_reaches(visit):
    page = visit.open("compare.html#grpo/dapo")
    before = page.locator("#diff .row").count()
    page.locator("#diff .fold").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#diff .row").count() > before, "Enter on a fold shows its lines"
    dark = page.evaluate("document.documentElement.dataset.theme")
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") != dark
    page.keyboard.press("/")
    page.keyboard.type("dr. grpo")
    page.wait_for_selector("#results a")
    page.locator("#results a[href^='dr_grpo.html']").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/dr_grpo.html*")
    assert not visit.problems, visit.problems


@pytest.mark.parametrize("url", ["index.html", "compare.html#grpo/dapo", "dcpo.html"])
def test_a_key_explains_the_table_of_traits(visit, url):
    page = visit.open(url)
    if page.locator("details.key").get_attribute("open") is None:
        page.click("details.key summary")
    assert "0.50: each response counts the same" in page.locator("details.key").inner_text()
    assert "no gradient below" in page.locator("main").inner_text().lower()


@pytest.mark.parametrize("visit", [(1200, "light"), (1200, "dark"), (360, "light")], indirect=True)
def test_nothing_serious_for_assistive_technology(visit):
    found = []
    for url in (*SIX, "start.html", "docs-runs.html", "notebooks-02_trust_regions.html", "scalerl.html"):
        visit.open(url)
        for violation in Axe().run(visit.page).response["violations"]:
            if violation["impact"] in ("serious", "critical"):
                nodes = [node["html"][:120] for node in violation["nodes"][:3]]
                found.append(f"{url}: {violation['id']}, {len(violation['nodes'])} times: {nodes}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("visit", [(1200, "light"), (1200, "dark"), (360, "light")], indirect=True)
def test_screenshots(visit, request):
    """Save screenshots of six pages for visual inspection."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    width, scheme = request.node.callspec.params["visit"]
    for url in SIX:
        page = visit.open(url)
        name = SHOTS / f"{url.split('.')[0]}-{width}-{scheme}.png"
        page.screenshot(path=name, full_page=False)
        assert name.stat().st_size > 10_000
