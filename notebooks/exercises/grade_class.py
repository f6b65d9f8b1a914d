"""Grade a class: a folder with a subfolder for each student.

    python -m notebooks.exercises.grade_class SUBMISSIONS --out marks --jobs 2

All students get the same cases. `marks.json` is written after each student. The same command continues an interrupted
grading: a student is graded again only if the files, the seed or the limits have changed. At the end it writes

    marks.json     every mark with its reason
    marks.csv      percent of the course and points, a row for each student
    canvas.csv     the percent of the course as a gradebook for Canvas (Grades, Import)
    marks.xml      JUnit, a suite for each student
    feedback/      a Markdown file for each student

The names of the subfolders are the students' SIS Login IDs. `--roster` takes a gradebook exported from Canvas and adds
names, IDs and sections. Needs Linux, like `notebooks.exercises.grade`, which says how a submission is graded.
"""

import hashlib
import json
import secrets
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from xml.etree import ElementTree

from common.cli import fail, printable, say
from common.folders import write_whole
from common.help import parse_args
from common.settings import Count, validated
from notebooks.exercises import canvas
from notebooks.exercises.exercises import FILES
from notebooks.exercises.files import Unusable, read
from notebooks.exercises.grade import (
    FORM,
    Limits,
    Mark,
    grade,
    need_a_sandbox,
    no_sandbox,
    parts,
    suite,
    summary,
    weighted,
    xml,
)
from notebooks.exercises.sandbox import Sandbox

import tyro

ASKED = (*(f"{script}.py" for script in FILES), "variants.py", FORM)  # the files that the grader reads
RECORD = "marks.json"


@dataclass
class Args(Limits):
    submissions: tyro.conf.Positional[Path]
    """The folder with a subfolder for each student."""
    out: Path = Path("marks")
    """Where to write the results."""
    roster: Path | None = None
    """A gradebook exported from Canvas as CSV."""
    assignment: str = "Exercises"
    """Title of the assignment in Canvas."""
    jobs: Count = 2
    """Submissions that are graded at the same time; each needs a core and 0.5 GiB of memory."""


def subfolders(folder: Path) -> list[Path]:
    """The students' folders; ends the program if the folder does not hold a class."""
    if not folder.is_dir():
        fail(f"{folder} is not a folder: pass the folder that has a subfolder for each student.")
    if any((folder / name).exists() for name in ASKED):
        fail(f"{folder} is one submission: pass the folder above it, or use python -m notebooks.exercises.grade.")
    found = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__MACOSX")))
    if links := [path.name for path in found if path.is_symlink()]:
        fail(f"{links[0]} is a link, which could lead to another student's files: put the files themselves there.")
    if not found:
        fail(f"{folder} has no subfolders: put each student's files into a folder named by the student's login.")
    return found


def fingerprint(folder: Path, args: Args) -> str:
    """A digest of everything that determines a submission's marks."""
    parts = [args.seed, args.seconds, args.memory_mb, args.key, args.bugs]
    for name in ASKED:
        try:
            parts.append(read(folder / name))
        except Unusable as problem:
            parts.append([str(problem)])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def misplaced(folder: Path) -> str:
    """A warning if the files that the grader reads are missing or one folder deeper."""
    missing = [name for name in ASKED if not (folder / name).exists()]
    if deeper := [name for name in missing if any(folder.glob(f"*/{name}"))]:
        return f"  not graded, because one folder deeper: {', '.join(deeper)}"
    return "  has none of the files" * (len(missing) == len(ASKED))


def read_record(path: Path) -> tuple[int | None, dict[str, Any]]:
    """An earlier grading's seed, and its results by student."""
    if not path.exists():
        return None, {}
    try:
        record = json.loads(path.read_text())
        return record["seed"], {name: dict(student) for name, student in record["students"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        fail(f"{path} is damaged: move it away to grade everybody again.")


def grade_all(folders: list[Path], args: Args, finish: Callable[[Path, list[Mark], float], None]) -> None:
    """Grade submissions, some at the same time, and call `finish` with each one's folder, marks and seconds."""
    free: SimpleQueue[Sandbox] = SimpleQueue()

    def one(folder: Path) -> tuple[list[Mark], float]:
        sandbox, start = free.get(), time.monotonic()
        try:
            return grade(folder, sandbox, args.seed, args.key, args.bugs), time.monotonic() - start
        finally:
            free.put(sandbox)

    with ThreadPoolExecutor(args.jobs) as pool, ExitStack() as stack:
        for _ in range(min(args.jobs, len(folders))):
            free.put(stack.enter_context(Sandbox(args.seconds, args.memory_mb)))
        waiting = {pool.submit(one, folder): folder for folder in folders}
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)  # on an interrupt, before the sandboxes end
        for done in as_completed(waiting):
            finish(waiting[done], *done.result())


def marks_of(student: dict[str, Any]) -> list[Mark]:
    return [Mark(**mark) for mark in student["marks"]]


def feedback(name: str, student: dict[str, Any], seed: int) -> str:
    """A student's marks as Markdown. Reasons may contain the student's text, so they are indented as code."""
    lines = [f"# {printable(name)}", summary(marks_of(student))]
    for mark in student["marks"]:
        lines.append(f"## {mark['file']}: {mark['name']}, {mark['points']} of {mark['most']}")
        if mark["reason"]:
            lines.append(textwrap.indent(textwrap.fill(mark["reason"], 100), " " * 4))
    return "\n\n".join([*lines, f"Seed of the cases: {seed}"]) + "\n"


def file_name(name: str) -> str:
    """A printable file name for a student, at most 200 bytes long; different names stay different."""
    made = printable(name.replace("\\", "\\\\"))
    data = made.encode()
    return made if len(data) <= 200 else f"{data[:160].decode(errors='ignore')}-{hashlib.sha256(data).hexdigest()[:16]}"


def write_results(students: dict[str, dict[str, Any]], roster: canvas.Roster, args: Args) -> None:
    """Write all output files except the record."""
    marks = {name: marks_of(student) for name, student in students.items()}
    one = next(iter(marks.values()))
    header = ["student", "percent", *(f"{part}, of {most}" for part, (_, most) in parts(one).items())]
    rows = [
        [
            canvas.cell(name),
            weighted(some)[0],
            *(points for points, _ in parts(some).values()),
            *(m.points for m in some),
        ]
        for name, some in marks.items()
    ]
    write_whole(
        args.out / "marks.csv", canvas.table([[*header, *(f"{mark.file}: {mark.name}" for mark in one)], *rows])
    )
    percent = {name: weighted(some)[0] for name, some in marks.items()}
    write_whole(args.out / "canvas.csv", canvas.gradebook(percent, weighted(one)[1], roster))
    suites = ElementTree.Element("testsuites")
    folder = args.out / "feedback"
    folder.mkdir(exist_ok=True)
    for name, student in students.items():
        suites.append(suite(printable(name), marks[name], student["seconds"]))
        write_whole(folder / f"{file_name(name)}.md", feedback(name, student, args.seed))
    write_whole(args.out / "marks.xml", xml(suites))


def compare_with(roster: canvas.Roster, names: list[str]) -> None:
    """Name the students who are in the roster or handed in, but not both."""
    if roster.students:
        for name in names:
            if not roster.find(name):
                say(f"{name} is not in the roster: canvas.csv has only the login.")
        handed_in = {name.casefold() for name in names}
        for login in roster.students:
            if login not in handed_in:
                say(f"{login} handed in nothing and is not in canvas.csv.")


def main(args: Args) -> None:
    args = validated(Args, vars(args))
    folders = subfolders(args.submissions)
    if args.out.resolve().is_relative_to(args.submissions.resolve()):
        fail("--out must lie outside the folder of the submissions.")
    roster = canvas.read_roster(args.roster, args.assignment)
    need_a_sandbox()
    seed, earlier = read_record(args.out / RECORD)
    if args.seed is None:
        args.seed = secrets.randbits(32) if seed is None else seed
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"{args.out} cannot be created ({error.strerror}): choose another --out.")
    prints = {folder: fingerprint(folder, args) for folder in folders}
    done = {f.name: earlier[f.name] for f in folders if earlier.get(f.name, {}).get("fingerprint") == prints[f]}
    if done:
        say(f"{len(done)} of {len(folders)} are graded already.")

    def finish(folder: Path, marks: list[Mark], seconds: float) -> None:
        done[folder.name] = {"fingerprint": prints[folder], "seconds": seconds, "percent": weighted(marks)[0]}
        done[folder.name]["marks"] = [asdict(mark) for mark in marks]
        write_whole(args.out / RECORD, json.dumps({"seed": args.seed, "students": done}, indent=1) + "\n")
        say(f"{len(done)} of {len(folders)}: {summary(marks)}  {folder.name}{misplaced(folder)}")

    try:
        grade_all([folder for folder in folders if folder.name not in done], args, finish)
    except KeyboardInterrupt:
        fail(f"interrupted: {len(done)} of {len(folders)} are graded; the same command continues.", code=130)
    except RuntimeError as problem:
        no_sandbox(problem)
    students = {folder.name: done[folder.name] for folder in folders}
    write_results(students, roster, args)
    compare_with(roster, list(students))
    say(f"{args.out}: marks of {len(students)} students; seed of the cases: {args.seed}")


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
