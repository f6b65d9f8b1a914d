"""The page of tools.watch in headless Chromium: its curves, its responses, and untrusted runs."""

import html
import math

from tools.plots import PANELS

import pytest
from axe_playwright_python.sync_playwright import Axe
from runs import watched, write_logs

HOSTILE = "<img src=x onerror=\"document.title='run'\"><b>&amp;</b><script>document.title='run'</script>"


def response(reward=1.0, text="4", tokens=None, **more):
    row = {"step": 1, "group": 0, "prompt": "2+2=?", "answer": "4", "text": text, "correct": reward > 0}
    row |= {"reward": reward, "advantage": reward - 0.5, "length": len(text), "truncated": False} | more
    return row | ({"tokens": {"text": list(text), **tokens}} if tokens else {})


def rows(steps, scale=1.0):
    """A log with every metric of the panels."""
    metrics = [metric for _, _, lines in PANELS for metric, *_ in lines]
    return [{"step": s} | {name: scale * (i + s / 10) for i, name in enumerate(metrics)} for s in range(steps)]


@pytest.fixture
def visit(browser, tmp_path):
    """A function that opens the page of all runs in the test's folder, without requests elsewhere or errors."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(600_000)  # a slow machine must not fail the test
    page, problems = context.new_page(), []
    with watched(tmp_path) as port:
        address = f"http://localhost:{port}/"
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith((address, "data:")) else problems.append(r.url))

        def visit():
            page.goto(address)
            page.wait_for_selector("html[data-renewed]", state="attached")
            return page

        yield visit
        context.close()
    assert not problems, "\n".join(problems)


CURVES = """() => Object.fromEntries([...document.querySelectorAll("#panels figure")].map((figure) => [
    figure.dataset.title, figure.lastChild.data.map((line) => [line.name, line.mode, [...line.x], [...line.y]])]))"""


def test_curves_of_runs_over_each_other(visit, tmp_path):
    """Curves show the logs' values, evaluations are points, and unchecking a run removes its curves."""
    logs = {"a": rows(4), "b": rows(3, 2.0)}
    for name, log in logs.items():
        write_logs(tmp_path / name, log, {})
    page = visit()

    def expected(names):
        return {
            title: [
                [
                    html.escape(f"{tmp_path / name}: {label}" if len(names) > 1 else label),
                    "markers" if metric.startswith("eval/") else "lines",
                    [row["step"] for row in logs[name]], [row[metric] for row in logs[name]],
                ]
                for name in names for metric, label, _ in lines
            ]
            for title, _, lines in PANELS
        }  # fmt: skip

    assert page.evaluate(CURVES) == expected(["a", "b"])
    page.locator("#runs input").nth(1).uncheck()
    for _ in range(1000):  # the page's policy forbids Playwright's wait_for_function
        if len(page.evaluate(CURVES)[PANELS[0][0]]) == 2:
            break
        page.wait_for_timeout(50)
    assert page.evaluate(CURVES) == expected(["a"])


def test_it_renews_itself(visit, tmp_path):
    """New rows, responses and runs appear, and the selected step stays selected."""
    write_logs(tmp_path / "a", rows(2), {1: [response(text="old")]})
    page = visit()
    page.wait_for_selector("article:has-text('old')")
    write_logs(tmp_path / "a", rows(3), {2: [response(text="new")]})
    page.wait_for_selector("article:has-text('new')")
    assert page.evaluate(CURVES)["Entropy"][0][2] == [0, 1, 2]
    page.select_option("#step", "1")
    page.wait_for_selector("article:has-text('old')")
    write_logs(tmp_path / "b", rows(2), {3: [response(text="other")]})
    write_logs(tmp_path / "a", rows(4), {3: [response(text="newest")]})
    page.wait_for_selector(f"label:has-text('{tmp_path / 'b'}')")
    assert page.input_value("#step") == "1" and page.locator("article:has-text('old')").count() == 1


def test_tokens_have_the_colors_of_their_values(visit, tmp_path):
    """The menu lists the file's values, the largest one has the strongest color, and the best reward comes first."""
    old, engine = [math.log(0.9), math.log(0.2)], [math.log(0.8), math.log(0.7)]
    tokens = {"advantage": [2.0, -1.0], "ratio": [0.5, 1.0], "old_logp": old, "rollout_logp": engine}
    some = [response(0.0, "no"), response(1.0, "ok", tokens), response(0.5, "so", {"advantage": [0.0, 1.0]})]
    write_logs(tmp_path / "a", rows(2), {1: some})
    page = visit()
    page.wait_for_selector("article")
    options = page.eval_on_selector_all("#color option", "all => all.map((option) => option.value)")
    assert options == ["advantage", "ratio", "old_logp", "rollout_logp", "mismatch", "none"]
    rewards = "all => all.map((one) => one.textContent.match(/reward ([\\d.]+)/)[1])"
    assert page.eval_on_selector_all("article", rewards) == ["1", "0.5", "0"]
    strength = """all => all.map((token) => { const parts = token.style.background.match(/[\\d.]+/g).map(Number);
        return [parts[0] === 0 ? "+" : "-", parts.length === 4 ? parts[3] : 1]; })"""

    def colors(name):
        page.select_option("#color", name)
        return page.eval_on_selector_all("article:first-child pre span", strength)

    assert colors("advantage") == [["+", 0.75], ["-", 0.5]]
    assert colors("ratio") == [["-", 1], ["+", 0]]
    assert colors("mismatch") == [["+", pytest.approx(0.75 * 0.1 / 0.5, abs=0.01)], ["+", 0.75]]
    assert page.inner_text("#scale").split() == ["mismatch:", "0", "0.5"]
    assert colors("none") == []
    page.select_option("#sort", "reward, lowest first")
    assert page.eval_on_selector_all("article", rewards) == ["0", "0.5", "1"]


def test_many_tokens(visit, tmp_path):
    """The page copes with more tokens than a function takes arguments, most of them not shown at first."""
    few, many = (
        response(1.0, "ok", {"advantage": [2.0, 1.0]}),
        response(0.0, "n" * 20_000, {"advantage": [-4.0] * 20_000}),
    )
    write_logs(tmp_path / "a", rows(2), {1: [few] * 50 + [many] * 15})
    page = visit()
    page.wait_for_selector("article")
    assert page.inner_text("#scale").split() == ["advantage:", "-4", "4"]


def test_no_text_of_a_run_is_html(visit, tmp_path):
    """Text from an untrusted run is always shown as plain text."""
    name = HOSTILE.replace("/", "")  # used as a folder's name
    texts = {"prompt": HOSTILE, "answer": HOSTILE, "rewards": {HOSTILE: 1.0}}
    hostile = response(text="x", **texts) | {"tokens": {"text": [HOSTILE], HOSTILE: [1.0], "advantage": [1.0]}}
    odd = [[], None, {"tokens": 3}, {"reward": {}, "tokens": {"text": "a", HOSTILE: [2.0]}, "rewards": None}]
    log = [row | {HOSTILE: 1.0, "__proto__": 2.0} for row in rows(2)]
    write_logs(tmp_path / name, log, {1: [response(text=HOSTILE), hostile, *odd]})
    write_logs(tmp_path / "other", log, {})
    page = visit()
    page.locator("#others summary").click()
    page.select_option("#run", str(tmp_path / name))
    page.wait_for_selector("article")
    page.select_option("#color", HOSTILE)
    shown = page.inner_text("body")
    assert shown.count(HOSTILE) > 6 and name in shown
    assert page.locator("body img, body b, body script").count() == 0 and page.title() == "Runs"


def test_runs_without_responses_and_without_tokens(visit, tmp_path):
    write_logs(tmp_path / "a", rows(2), {})
    write_logs(tmp_path / "b", rows(2), {1: [response(text="whole text")]})
    page = visit()
    page.select_option("#run", str(tmp_path / "a"))
    page.wait_for_selector("text=This run has saved no responses")
    page.select_option("#run", str(tmp_path / "b"))
    page.wait_for_selector("article:has-text('whole text')")
    assert page.eval_on_selector_all("#color option", "all => all.map((option) => option.value)") == ["none"]


def test_nothing_serious_for_assistive_technology(visit, tmp_path):
    write_logs(tmp_path / "a", rows(3), {1: [response(1.0, "ok", {"advantage": [2.0, -1.0]})]})
    page = visit()
    page.wait_for_selector("article")
    found = Axe().run(page).response["violations"]
    assert not [v["id"] for v in found if v["impact"] in ("serious", "critical")]
