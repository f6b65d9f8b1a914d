"""Grading a class: marks equal those of single gradings, nothing is lost or repeated, and output files are safe."""

import csv
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from notebooks.exercises import canvas, grade, grade_class
from notebooks.exercises.answers import answers
from notebooks.exercises.exercises import BY_NAME
from notebooks.exercises.grade import Mark
from notebooks.exercises.grade_class import Args
from notebooks.exercises.runner import run
from notebooks.exercises.sandbox import Sandbox
from tools.scripts import ROOT

import pytest
from solutions import solve, written

ESCAPES = "\x1b[2Jeve\x9b,=1+1"  # a folder's name
NAME = "dr_grpo.compute_advantages"
FEW = partial(grade.grade, exercises=[BY_NAME[NAME], BY_NAME["dr_grpo.token_weights"]])


@pytest.fixture
def submissions(tmp_path):
    """Three students: one correct, one with a mistake, one with escape sequences in name and error message."""
    for name in ("ann", "bob", ESCAPES):
        (tmp_path / "class" / name).mkdir(parents=True)
        solve(tmp_path / "class" / name, ["dr_grpo"])
    wrong = (tmp_path / "class" / "bob" / "dr_grpo.py").read_text().replace("rewards - rewards", "rewards + rewards")
    (tmp_path / "class" / "bob" / "dr_grpo.py").write_text(wrong)
    body = "raise type('\x1b[2J\\n66 of 66 points', (Exception,), {})('\x9b')"
    (tmp_path / "class" / ESCAPES / "dr_grpo.py").write_text(written(NAME, body))
    return tmp_path / "class"


@pytest.fixture
def graded(monkeypatch):
    """Names of the graded folders; without a sandbox, a file without the word `raise` gets a point."""
    names = []

    def count(folder, sandbox, seed, *more):
        names.append(folder.name)
        if not (folder / "dr_grpo.py").exists():
            return [Mark("dr_grpo.py", "f", 0, 1, "the file is missing.")]
        return [Mark("dr_grpo.py", "f", int("raise" not in (folder / "dr_grpo.py").read_text()), 1)]

    monkeypatch.setattr(grade_class, "grade", count)
    monkeypatch.setattr(grade_class, "Sandbox", lambda *limits: nullcontext())
    return names


BOB = "functions 1 of 2 points, silent bugs 0 of 23 points; 17.5 of 50 percent of the course"


def record(out):
    return json.loads((out / "marks.json").read_text())


@pytest.mark.slow
def test_a_class_of_three(submissions, tmp_path, monkeypatch, capsys):
    """Marks equal those of the single grader with the same seed."""
    monkeypatch.setattr(grade_class, "grade", FEW)
    out = tmp_path / "marks"
    grade_class.main(Args(submissions, out=out, seed=5))
    screen = capsys.readouterr().out
    with Sandbox() as sandbox:
        expected = {folder.name: FEW(folder, sandbox, 5) for folder in submissions.iterdir()}
    students = record(out)["students"]
    assert {name: student["marks"] for name, student in students.items()} == {
        name: [asdict(mark) for mark in marks] for name, marks in expected.items()
    }
    assert {name: student["percent"] for name, student in students.items()} == {"ann": 35, "bob": 17.5, ESCAPES: 0}

    shown = r"\x1b[2Jeve\x9b,=1+1"
    rows = {row["student"]: row for row in csv.DictReader((out / "marks.csv").open())}
    assert {name: row["functions, of 2"] for name, row in rows.items()} == {"ann": "2", "bob": "1", shown: "0"}
    assert rows["bob"]["percent"] == "17.5" and rows["bob"]["silent bugs, of 23"] == "0"
    assert rows["bob"]["dr_grpo.py: compute_advantages"] == "0" and rows["bob"]["dr_grpo.py: token_weights"] == "1"
    header, possible, *people = csv.reader((out / "canvas.csv").open())
    assert header == ["Student", "ID", "SIS Login ID", "Section", "Exercises"]
    assert possible == ["    Points Possible", "", "", "", "50"]
    assert people == [[name, "", name, "", mark] for name, mark in ((shown, "0.0"), ("ann", "35.0"), ("bob", "17.5"))]
    suites = ElementTree.parse(out / "marks.xml").getroot()
    assert {suite.get("name"): len(suite.findall("testcase/failure")) for suite in suites} == {
        "ann": 9, "bob": 10, shown: 11  # nine runs with silent bugs, whose form is missing
    }  # fmt: skip
    feedback = {path.name: path.read_text() for path in (out / "feedback").iterdir()}
    assert set(feedback) == {"ann.md", "bob.md", f"{shown}.md"}
    assert feedback["bob.md"].startswith(f"# bob\n\n{BOB}\n\n## dr_grpo.py: compute_advantages, 0 of 1\n\n    ")
    assert "Seed of the cases: 5" in feedback["ann.md"]
    written_files = [path.read_text() for path in out.rglob("*") if path.is_file()]
    assert all(c.isprintable() or c == "\n" for text in (screen, *written_files) for c in text)
    assert f"{BOB}  bob\n" in screen and "66 of 66" not in screen  # reasons are not on the screen


def test_only_what_has_changed_is_graded_again(submissions, graded, tmp_path, capsys):
    args = {"submissions": submissions, "out": tmp_path / "marks", "jobs": 1}
    grade_class.main(Args(**args))
    first = record(tmp_path / "marks")
    assert sorted(graded) == sorted(["ann", "bob", ESCAPES])
    graded.clear()
    grade_class.main(Args(**args))  # reuses the first grading's seed
    assert graded == [] and record(tmp_path / "marks") == first
    assert "3 of 3 are graded already" in capsys.readouterr().out
    (submissions / "bob" / "dr_grpo.py").write_text("raise")
    (submissions / "ann" / "notes.txt").write_text("not a file that is graded")
    grade_class.main(Args(**args))
    assert graded == ["bob"] and record(tmp_path / "marks")["students"]["bob"]["percent"] == 0
    graded.clear()
    (submissions / "ann" / "grpo.py").write_text("x = 1\n")
    grade_class.main(Args(**args))
    assert graded == ["ann"]
    grade_class.main(Args(**args, seed=first["seed"] ^ 1))
    assert sorted(graded[1:]) == sorted(["ann", "bob", ESCAPES])
    graded.clear()
    grade_class.main(Args(**args, seconds=9))
    assert len(graded) == 3


def test_an_interruption_loses_nothing(submissions, graded, tmp_path, monkeypatch, capsys):
    args = {"submissions": submissions, "out": tmp_path / "marks", "jobs": 1}
    count = grade_class.grade

    def interrupted(folder, *more):
        if folder.name == "bob":
            raise KeyboardInterrupt
        return count(folder, *more)

    with monkeypatch.context() as patch:
        patch.setattr(grade_class, "grade", interrupted)
        with pytest.raises(SystemExit) as end:
            grade_class.main(Args(**args))
    assert end.value.code == 130 and "interrupted: 2 of 3 are graded" in capsys.readouterr().err
    assert set(record(tmp_path / "marks")["students"]) == {"ann", ESCAPES}
    grade_class.main(Args(**args))
    assert graded[2:] == ["bob"] and len(record(tmp_path / "marks")["students"]) == 3


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def running(pid):
    """Whether a process is still running; one that init has not reaped yet is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def within(seconds, condition):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_ctrl_c(submissions, tmp_path):
    """Ctrl-C ends the endless function and its sandbox at once, with one sentence."""
    (submissions / "bob" / "reinforce.py").write_text("while True:\n    pass\n")
    command = [sys.executable, "-m", "notebooks.exercises.grade_class", submissions, "--out", tmp_path / "out"]
    command += ["--jobs", "1", "--seconds", "600"]
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "ann" in run.stdout.readline() + run.stdout.readline()
    (server,) = children(run.pid)
    within(60, lambda: any(map(children, children(server))))  # the server's child reads the request and has a child
    (reader,) = children(server)
    processes = [server, reader, *children(reader)]
    run.send_signal(signal.SIGINT)
    assert run.wait(30) == 130
    assert run.stderr.read() == "error: interrupted: 2 of 3 are graded; the same command continues.\n"
    assert len(record(tmp_path / "out")["students"]) == 2
    within(10, lambda: not any(map(running, processes)))


def refused(capsys, *more, **settings):
    with pytest.raises(SystemExit) as end:
        grade_class.main(Args(*more, **settings))
    assert end.value.code == 2
    return capsys.readouterr().err


def test_what_is_not_a_class(submissions, tmp_path, capsys):
    out = tmp_path / "marks"
    assert "is not a folder" in refused(capsys, tmp_path / "none", out=out)
    assert "is one submission" in refused(capsys, submissions / "ann", out=out)
    (tmp_path / "empty" / ".git").mkdir(parents=True)
    assert "has no subfolders" in refused(capsys, tmp_path / "empty", out=out)
    assert "--out must lie outside" in refused(capsys, submissions, out=submissions / "marks")
    assert "--jobs must be greater" in refused(capsys, submissions, out=out, jobs=0)
    assert "cannot be read" in refused(capsys, submissions, out=out, roster=tmp_path / "none.csv")
    out.write_text("")
    assert "marks cannot be created (File exists)" in refused(capsys, submissions, out=out)
    out.unlink()
    out.mkdir()
    for text in ("{", "[]", '{"seed": 1}'):
        (out / "marks.json").write_text(text)
        assert "marks.json is damaged" in refused(capsys, submissions, out=out)


def test_a_machine_without_a_sandbox(submissions, graded, tmp_path, monkeypatch, capsys):
    """Nothing is graded on a machine without a sandbox, where `Sandbox` itself would run functions unconfined."""
    with monkeypatch.context() as patch:
        patch.setattr(grade, "CONFINES", False)
        assert "needs Linux" in refused(capsys, submissions, out=tmp_path / "marks") and graded == []

    def broken(*_):
        raise RuntimeError("the kernel refuses")

    monkeypatch.setattr(grade_class, "grade", broken)
    with pytest.raises(SystemExit) as end:
        grade_class.main(Args(submissions, out=tmp_path / "marks"))
    assert end.value.code == 1 and "does not work on this machine (the kernel refuses)" in capsys.readouterr().err
    assert not (tmp_path / "marks" / "marks.csv").exists()


EXPORTED = """\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,Exercises (812),Exercises 2 (99),Final Score
,,,,,Manual Posting,,
    Points Possible,,,,,66,10,(read only)
"Lee, Ann",101,A-1,Ann,"CS 1, CS 2",,,
"Ray, Bob",102,B-2,bob,CS 1,,,
"Student, Test",103,,,CS 1,,,
"""


def test_files_one_folder_deeper(submissions, graded, tmp_path, capsys):
    (submissions / "bob" / "handout").mkdir()
    (submissions / "bob" / "dr_grpo.py").rename(submissions / "bob" / "handout" / "dr_grpo.py")
    grade_class.main(Args(submissions, out=tmp_path / "marks"))
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "folder deeper" in line)
    assert line.endswith("percent of the course  bob  not graded, because one folder deeper: dr_grpo.py")
    (submissions / "eve").mkdir()
    grade_class.main(Args(submissions, out=tmp_path / "marks"))
    assert "percent of the course  eve  has none of the files\n" in capsys.readouterr().out


def test_canvas(tmp_path, capsys):
    """Rows are copied from Canvas's export and matched by login; a student who submitted nothing has no row."""
    (tmp_path / "roster.csv").write_text(EXPORTED)
    roster = canvas.read_roster(tmp_path / "roster.csv", "Exercises")
    rows = list(csv.reader(canvas.gradebook({"ann": 31, "eve": 5}, 66, roster).splitlines()))
    assert rows == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "Exercises (812)"],
        ["    Points Possible", "", "", "", "", "66"],
        ["Lee, Ann", "101", "A-1", "Ann", "CS 1, CS 2", "31"],
        ["eve", "", "", "eve", "", "5"],
    ]
    assert roster.find("ANN") == roster.find("ann") and roster.find("an") is None
    grade_class.compare_with(roster, ["ann", "eve"])
    assert capsys.readouterr().out == (
        "eve is not in the roster: canvas.csv has only the login.\nbob handed in nothing and is not in canvas.csv.\n"
    )
    assert canvas.read_roster(tmp_path / "roster.csv", "Homework").assignment == "Homework"
    (tmp_path / "roster.csv").write_text(EXPORTED.replace(", ", "/").replace(",", ";"))
    assert set(canvas.read_roster(tmp_path / "roster.csv", "Exercises").students) == {"ann", "bob"}
    for text in ("", "Student,ID,Section\n"):
        (tmp_path / "roster.csv").write_text(text)
        with pytest.raises(SystemExit):
            canvas.read_roster(tmp_path / "roster.csv", "Exercises")
        assert "has no column" in capsys.readouterr().err


def test_spreadsheets():
    """A name is never a formula, and a name of digits is a Canvas ID."""
    assert [canvas.cell(text) for text in ("=1+1", "@x", "-x", "ann", "a=b")] == ["'=1+1", "'@x", "'-x", "ann", "a=b"]
    lines = canvas.gradebook({"=1+1": 3, "4711": 2}, 66, canvas.read_roster(None, "Exercises")).splitlines()
    assert lines[2:] == ["'=1+1,,'=1+1,,3", "4711,4711,4711,,2"]


def test_feedback():
    """A reason is shown as code, even if it contains Markdown."""
    mark = asdict(Mark("a.py", "f", 0, 2, "![x](http://y) " * 20))
    text = grade_class.feedback("ann", {"marks": [mark]}, 1)
    assert all(line.startswith("    ![x]") for line in text.splitlines() if "http" in line) and text.count("http") == 20


def test_two_threads_make_the_answers_that_one_makes():
    """Two threads make the same answers as one, although threads share torch's random numbers, which loops use."""
    exercise, seeds = BY_NAME["loop.train"], (71, 72)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(partial(answers, exercise), seeds))
    assert [one["right"] for one in made] == [run(exercise.module(), "train", one["cases"]) for one in made]


def test_a_part_counts_as_the_guide_says():
    """Each part's weight is the guide's, whatever its points: 13 for a key's functions, 19 for its silent bugs."""
    guide = (ROOT / "notebooks/teachers-guide.md").read_text()
    for part, row in (
        ("functions", "| functions (of a key) | 35 % |"),
        ("silent bugs", "| silent bugs (of a key) | 15 % |"),
    ):
        assert row in guide and f"{grade.WEIGHTS[part]} %" in row
    functions = [grade.Mark("variants.py", "f", points, 13) for points in (13, 0)]
    bugs = [grade.Mark(grade.FORM, "run A", points, 19) for points in (19, 0)]
    assert [grade.weighted([functions[i], bugs[j]]) for i, j in ((0, 0), (0, 1), (1, 0), (1, 1))] == [
        (50, 50), (35, 50), (15, 50), (0, 50)
    ]  # fmt: skip
    assert grade.weighted(functions[:1]) == (35, 35), "without --bugs"
    assert grade.weighted([grade.Mark("variants.py", "f", 1, 3)]) == (11.67, 35)


def test_a_link_to_another_students_folder_is_refused(submissions, tmp_path, capsys):
    (submissions / "eve").symlink_to(submissions / "ann")
    assert "eve is a link" in refused(capsys, submissions, out=tmp_path / "marks")


def test_long_names_of_folders(submissions, graded, tmp_path):
    """Feedback files work for names of 255 bytes, even with escapes and an extension added."""
    for name in ("x" * 255, "x" * 254 + "y", "\x1b" * 200, "ä" * 127):
        (submissions / name).mkdir()
    grade_class.main(Args(submissions, out=tmp_path / "marks"))
    assert len(list((tmp_path / "marks" / "feedback").iterdir())) == 7
