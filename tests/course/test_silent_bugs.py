"""Silent bugs: shown runs do not reveal their bug, every bug can be made, and answers get their points."""

import ast
import json
import math
import multiprocessing
import sys
from pathlib import Path
from statistics import NormalDist

from notebooks.exercises import bug_power, grade, gradescope, key, make, make_bugs, silent_bugs, similar
from notebooks.exercises.grade import grade_bugs
from tools.scripts import ROOT

import pytest


def test_the_runs_hide_what_they_are():
    """The record holds three seeds of each run and of its healthy twin, without name, script or setting."""
    record = json.loads(silent_bugs.LOGS.read_text())
    assert set(record) == {"date", "versions", "runs"} and list(record["runs"]) == list(key.PRACTICE)
    for run_ in record["runs"].values():
        assert set(run_) == {"healthy", "shown"} and [len(logs) for logs in run_.values()] == [3, 3]
        logs = run_["healthy"] + run_["shown"]
        assert len({json.dumps(log) for log in logs}) == 6 and len({len(log) for log in logs}) == 1
        assert all(set(row) <= {"step", *silent_bugs.PANELS} for log in logs for row in log)
    names = [bug for bug, _ in key.PRACTICE.values()]
    assert names.count("healthy") == 2 and len(set(names)) == 8 and set(names) == set(key.KEY)
    assert len(silent_bugs.BUGS) == len(silent_bugs.MECHANISMS) == len(silent_bugs.TESTS) == 13
    for i, texts in enumerate((silent_bugs.MECHANISMS, silent_bugs.TESTS)):
        assert len({pair[i] for pair in key.KEY.values()} & set(texts)) == 8


def test_no_two_runs_share_a_seed():
    """No two runs share a seed, which would reveal a common script and settings; each key draws its own."""
    keys = (None, "None", "one", "two")
    made = [*(block for key in keys for block in make_bugs.blocks(key)), *bug_power.own_blocks()]
    drawn = [seed for *_, seeds, _ in made for seed in seeds]
    assert len(drawn) == len(set(drawn)) == make_bugs.SEEDS * (len(keys) * 18 + len(bug_power.own_blocks()))
    assert make_bugs.blocks("one") == make_bugs.blocks("one")


@pytest.mark.parametrize("key_", ["", " "])
def test_an_empty_key_is_refused(key_, tmp_path, capsys):
    """An empty key is refused, because an unset shell variable would give one that everybody knows."""
    for command in (
        lambda: make_bugs.main(make_bugs.Args(key_)),
        lambda: make.main(make.Args(tmp_path / "handout", key_)),
        lambda: grade.Args(tmp_path, key=key_),
        lambda: gradescope.Args(tmp_path / "a.zip", key_),
        lambda: similar.main(similar.Args(tmp_path, key=key_)),
    ):
        with pytest.raises(SystemExit):
            command()
        assert "--key is empty" in capsys.readouterr().err


def test_what_a_key_draws():
    """A key draws five different bugs and four healthy runs, which may have any bug's script and settings."""
    drawn = [key.plan(f"class {i}") for i in range(100)]
    for letters in drawn:
        assert list(letters) == list(key.PRACTICE)
        bugs = [bug for bug, settings in letters.values() if bug == settings]
        assert len(bugs) == len(set(bugs)) == 5 and [b for b, _ in letters.values()].count("healthy") == 4
    for letter in key.PRACTICE:
        assert {letters[letter] for letters in drawn} == {(a, b) for b in make_bugs.SETTINGS for a in (b, "healthy")}
    assert key.plan("class 1") == drawn[1] and key.plan() == key.PRACTICE


def test_a_run_of_a_key_has_the_bug_that_the_grader_asks_for(tmp_path):
    letters = key.plan("secret")
    made = {name: (script, flags, change) for name, script, flags, _, change in make_bugs.blocks("secret")}
    for letter, (bug, settings) in letters.items():
        script, flags, change = make_bugs.SETTINGS[settings]
        assert made[f"{letter}-healthy"] == (script, flags, None)
        assert made[f"{letter}-shown"] == (script, flags, None if bug == "healthy" else change)
    form = {letter: dict(zip(("bug", "mechanism", "test"), (bug, *key.KEY[bug]), strict=True))
            for letter, (bug, _) in letters.items()}  # fmt: skip
    (tmp_path / grade.FORM).write_text(json.dumps(form))
    for name, points in (("secret", 19), ("another", None), (None, None)):
        found = sum(mark.points for mark in grade_bugs(tmp_path, name))
        assert found == points if points else found < 13
    for bugs, count in ((False, 0), (True, 9)):
        marks = grade.grade(tmp_path, None, 1, "secret", bugs)
        assert sum(mark.file == grade.FORM for mark in marks) == count


def test_a_statistic_tells_every_bug_from_healthy_runs():
    """With three seeds against three, measured power is above 95 % and false alarms are below 5 %."""
    record = json.loads(bug_power.REPORT.read_text())["bugs"]
    assert set(record) == set(make_bugs.SETTINGS)
    for bug, row in record.items():
        assert min(len(row["with"]), len(row["without"])) >= 2 * make_bugs.SEEDS
        again = bug_power.measure(bug, row["with"], row["without"])
        assert again == row | {name: pytest.approx(row[name], abs=1e-3) for name in ("power", "false_alarms")}, bug
        assert row["power"] > 0.95 and row["false_alarms"] < 0.05, bug
    practice = silent_bugs.runs()
    for letter, (bug, _) in key.PRACTICE.items():
        if bug != "healthy":  # the record has the numbers behind the pictures
            values = [bug_power.statistic(log, record[bug]["panel"]) for log in practice[letter]["shown"]]
            assert values == pytest.approx(record[bug]["with"][: make_bugs.SEEDS], abs=1e-3)


def test_power():
    """A gap equal to the factor is detected half of the time, and only gaps in the expected direction count."""
    factor = math.log(key.STATISTICS["kl-sign"][1])
    row = bug_power.measure("kl-sign", [factor + 0.1, factor - 0.1], [0.1, -0.1])
    assert row["power"] == pytest.approx(0.5) and row["false_alarms"] < 1e-3
    below = bug_power.measure("scaled-loss", [-5.0, -5.1], [0.0, 0.1])
    assert below["power"] > 0.999 and bug_power.measure("scaled-loss", [5.0, 5.1], [0.0, 0.1])["power"] < 1e-3
    wide = bug_power.measure("shaped-filter", [-0.3, -0.1], [0.2, -0.2])
    assert wide["false_alarms"] == pytest.approx(1 - NormalDist(0, math.sqrt(2 * 0.08 / 3)).cdf(-math.log(0.86)))
    assert bug_power.statistic([{"kl": 1.0}, {"kl": math.e}], "kl") == pytest.approx(0.5)


@pytest.mark.parametrize("bug", make_bugs.SETTINGS)
def test_every_bug_can_be_made(bug):
    """A bug's line occurs once in its file, and the changed file is valid Python."""
    file, line, wrong_line = make_bugs.SETTINGS[bug][2]
    text = (ROOT / file).read_text()
    assert text.count(line) == 1, f"{file}: {line!r}"
    ast.parse(text.replace(line, wrong_line))


def test_points_for_silent_bugs(tmp_path):
    """Name, mechanism and test earn one point each, the last two only with the name, and nonsense earns none."""
    bug, third = key.PRACTICE["C"][0], list(key.PRACTICE).index("C")
    mechanism, test = key.KEY[bug]
    for answer, points in (
        ({"bug": bug, "mechanism": mechanism, "test": test}, 3),
        ({"bug": bug, "mechanism": "M8", "test": test}, 2),
        ({"bug": bug}, 1),
        ({"bug": "healthy", "mechanism": mechanism, "test": test}, 0),
        ({"bug": [bug]}, 0),
        (bug, 0),
    ):
        (tmp_path / grade.FORM).write_text(json.dumps({"C": answer}))
        marks = grade_bugs(tmp_path)
        assert [mark.points for mark in marks] == [points if i == third else 0 for i in range(len(key.PRACTICE))]
        assert bug not in marks[third].reason, "the reason must not say the answer"
    form = {letter: {"bug": "healthy", "mechanism": "M8", "test": "T5"} for letter in key.PRACTICE}
    (tmp_path / grade.FORM).write_text(json.dumps(form))
    assert (
        sum(mark.points for mark in grade_bugs(tmp_path)) == 2 and sum(m.points for m in grade_bugs(tmp_path, "a")) == 4
    )
    (tmp_path / grade.FORM).write_text(silent_bugs.blank_form())
    assert sum(mark.points for mark in grade_bugs(tmp_path)) == 0
    for text in ("[]", "[" * 100_000, "no JSON"):
        (tmp_path / grade.FORM).write_text(text)
        assert all(mark.points == 0 and mark.reason for mark in grade_bugs(tmp_path))


def test_a_picture_of_a_run(tmp_path):
    figure = silent_bugs.show_bug("C")
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert all(len(axes.lines) == 6 for axes in shown) and len(shown) >= 8
    assert [text.get_text() for text in shown[0].get_legend().get_texts()] == ["healthy", "run C"]


@pytest.mark.parametrize("change", [None, ("grpo.py", "def main(", "def other(")])
def test_a_run_has_its_seeds_and_its_bug(change, tmp_path, monkeypatch):
    """Scripts run in a copy of the repository with at most one changed line; step rows keep four digits."""

    def run_path(path, run_name):
        """Instead of a run, write a log with the seed as the length."""
        given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
        assert path == sys.argv[0] == "grpo.py" and given["--lr"] == "2e-5" and run_name == "__main__"
        row = {"length": float(given["--seed"]), "accuracy": 1 / 3, "secret": 1.0}
        row["entropy"] = float("def other(" in Path(path).read_text())
        Path(given["--run-dir"]).mkdir()
        rows = [{"step": step, **row} for step in (0, 1)]
        (Path(given["--run-dir"]) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.setattr(make_bugs.runpy, "run_path", run_path)
    words = (tmp_path / "X-shown.json", "grpo", ("--lr", "2e-5"), [3, 8], change)
    process = multiprocessing.get_context("fork").Process(target=make_bugs.run, args=words)
    process.start()
    process.join()
    kept = {"step": 1, "accuracy": 0.3333, "entropy": float(change is not None)}
    assert json.loads((tmp_path / "X-shown.json").read_text()) == [[kept | {"length": seed}] for seed in (3.0, 8.0)]
