"""Silent bugs: the shown runs hide what they are, every bug can be made, and answers get their points."""

import ast
import json
import multiprocessing
import sys
from pathlib import Path

from notebooks.exercises import grade, key, make_bugs, silent_bugs
from notebooks.exercises.grade import grade_bugs
from tools.scripts import ROOT

import pytest


def test_the_runs_hide_what_they_are():
    """The record holds three seeds of each run and of its healthy twin, without name, script or setting."""
    record = json.loads(silent_bugs.LOGS.read_text())
    assert set(record) == {"date", "versions", "runs"} and set(record["runs"]) <= set(make_bugs.RUNS)
    assert list(make_bugs.RUNS) == list(key.SHOWN)
    for run_ in record["runs"].values():
        assert set(run_) == {"healthy", "shown"} and [len(logs) for logs in run_.values()] == [3, 3]
        logs = run_["healthy"] + run_["shown"]
        assert len({json.dumps(log) for log in logs}) == 6 and len({len(log) for log in logs}) == 1
        assert all(set(row) <= {"step", *silent_bugs.PANELS} for log in logs for row in log)
    names = list(key.SHOWN.values())
    assert names.count("healthy") == 2 and len(set(names)) == 9 and set(names) == set(key.KEY)
    assert len(silent_bugs.BUGS) == len(silent_bugs.MECHANISMS) == len(silent_bugs.TESTS) == 13
    for i, texts in enumerate((silent_bugs.MECHANISMS, silent_bugs.TESTS)):
        assert len({pair[i] for pair in key.KEY.values()} & set(texts)) == 9


def test_no_two_runs_share_a_seed():
    """Equal first steps would say which letters have the same script and settings."""
    drawn = [seed for letter in make_bugs.RUNS for half in make_bugs.seeds(letter) for seed in half]
    assert len(drawn) == len(set(drawn)) == 2 * make_bugs.SEEDS * len(make_bugs.RUNS)


@pytest.mark.parametrize("letter", make_bugs.RUNS)
def test_every_bug_can_be_made(letter):
    """The line that a bug changes occurs once in its file, and the changed file is valid Python."""
    script, _, change = make_bugs.RUNS[letter]
    file, line, wrong_line = change or (f"{script}.py", "def main", "def main")
    text = (ROOT / file).read_text()
    assert text.count(line) == 1, f"{file}: {line!r}"
    ast.parse(text.replace(line, wrong_line))


def test_points_for_silent_bugs(tmp_path):
    """One point each for name, mechanism and test; the latter two only with the correct name; none for nonsense."""
    bug, third = key.SHOWN["C"], list(silent_bugs.runs()).index("C")
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
        assert [mark.points for mark in marks] == [points if i == third else 0 for i in range(len(silent_bugs.runs()))]
        assert bug not in marks[third].reason, "the reason must not say the answer"
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
    """Each script runs in a copy of the repository, where one line may differ; steps are kept, with four digits."""

    def run_path(path, run_name):
        """In place of a run: its log, with the seed as the length."""
        given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
        assert path == sys.argv[0] == "grpo.py" and given["--lr"] == "2e-5" and run_name == "__main__"
        row = {"length": float(given["--seed"]), "accuracy": 1 / 3, "secret": 1.0}
        row["entropy"] = float("def other(" in Path(path).read_text())
        Path(given["--run-dir"]).mkdir()
        rows = [{"step": step, **row} for step in (0, 1)]
        (Path(given["--run-dir"]) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.setattr(make_bugs.runpy, "run_path", run_path)
    monkeypatch.setattr(make_bugs, "KEPT", tmp_path)
    words = ("X-shown", "grpo", ("--lr", "2e-5"), [3, 8], change)
    process = multiprocessing.get_context("fork").Process(target=make_bugs.run, args=words)
    process.start()
    process.join()
    kept = {"step": 1, "accuracy": 0.3333, "entropy": float(change is not None)}
    assert json.loads((tmp_path / "X-shown.json").read_text()) == [[kept | {"length": seed}] for seed in (3.0, 8.0)]
