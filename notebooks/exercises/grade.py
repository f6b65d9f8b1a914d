"""Grade a folder that a student handed in.

    python -m notebooks.exercises.grade SUBMISSION --json results.json --junit results.xml

The grader recomputes everything in a sandbox and compares only numbers. It reads only the files that the handout asks
for. Each function runs in its own process that can only compute (sandbox.py), on cases made anew for each grading, and
the numbers it returns are compared here with those of this repository's scripts. A function that is missing, crashes,
hangs or is wrong gets 0 points and a reason. A function is worth its level in points, a silent bug one point each
for name, mechanism and test, and a run without a bug one point. With the `--key` of a handout only what the key drew
is graded: the functions in variants.py, and with `--bugs` the silent bugs.

`--json` writes Gradescope's results.json, `--junit` JUnit's XML. Needs Linux.
"""

import json
import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NoReturn
from xml.etree import ElementTree

from common.cli import fail, printable, say
from common.help import parse_args
from common.settings import Count
from notebooks.exercises import silent_bugs
from notebooks.exercises.answers import answers
from notebooks.exercises.exercises import CHANGES, EXERCISES, FILES, Exercise
from notebooks.exercises.files import Unusable, choice, read, sources
from notebooks.exercises.key import KEY, check_key, plan
from notebooks.exercises.sandbox import CONFINES, Sandbox
from notebooks.exercises.variants import variants
from notebooks.exercises.verdict import passed, verdict

import tyro

FORM = "silent_bugs_answers.json"
WEIGHTS = {"functions": 35, "silent bugs": 15}  # percent of the course's mark, as in the teacher's guide
LONGEST = 500  # characters per reason
NOT_RIGHT = "incorrect: which curve would look different if it were true?"


@dataclass(kw_only=True)
class Limits:
    """What the marks of a submission depend on, besides its files."""

    seed: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Seed of the cases; random by default. The same seed repeats a grading."""
    seconds: Count = 10
    """Time limit of a function: seconds of processor time, and four times as many of wall time."""
    memory_mb: Count = 1024
    """Memory limit of a function in MB, not counting what torch itself takes."""
    key: str | None = None
    """The key of the class: grade the functions in variants.py that it draws, and nothing else."""
    bugs: bool = False
    """Also grade the silent bugs that the key draws (make_bugs.py)."""

    def __post_init__(self) -> None:
        check_key(self.key, self.bugs)


@dataclass
class Args(Limits):
    submission: tyro.conf.Positional[Path]
    """The folder that was handed in."""
    json: Path | None = None
    """Where to write Gradescope's results.json."""
    junit: Path | None = None
    """Where to write JUnit's XML."""


@dataclass
class Mark:
    """Points for one function or one silent bug, and the reason for missing ones."""

    file: str
    name: str
    points: int
    most: int
    reason: str = ""

    def __post_init__(self) -> None:
        self.reason = printable(self.reason[:LONGEST])  # it may contain the student's text


def grade_function(exercise: Exercise, folder: Path, sandbox: Sandbox, seed: int) -> Mark:
    file = f"{exercise.script}.py"
    try:
        files = sources(folder, FILES, exercise.script)
        if exercise.function == "changed":
            exercise = replace(exercise, method=choice(files[exercise.script], CHANGES))
    except Unusable as problem:
        return Mark(file, exercise.function, 0, exercise.level, str(problem))
    hidden = answers(exercise, seed)
    results = sandbox.run(files, exercise.script, exercise.function, hidden["cases"])
    if passed(results, hidden):
        return Mark(file, exercise.function, exercise.level, exercise.level)
    return Mark(file, exercise.function, 0, exercise.level, verdict(results, hidden) or "it is not correct.")


def right_answers(bug: str) -> dict[str, str]:
    """The correct entries of a form for a run; for a run without a bug, only that it has none."""
    return {"bug": bug} | ({} if bug == "healthy" else dict(zip(("mechanism", "test"), KEY[bug], strict=True)))


def grade_bugs(folder: Path, key: str | None = None) -> list[Mark]:
    """Up to three points for each run; mechanism and test count only if the name is correct.

    A run without a bug is worth one, for its name: with three, calling every run healthy would earn 12 of 27 points.
    """
    try:
        form = json.loads(read(folder / FORM))
        if not isinstance(form, dict):
            raise Unusable("the file is not an object with a key for each run.")
    except (Unusable, ValueError, RecursionError) as problem:
        reason = str(problem) if isinstance(problem, Unusable) else "the file is not JSON."
        return [
            Mark(FORM, f"run {letter}", 0, len(right_answers(bug)), reason) for letter, (bug, _) in plan(key).items()
        ]
    marks = []
    for letter, (bug, _) in plan(key).items():
        given = form.get(letter) if isinstance(form.get(letter), dict) else {}
        lists = {"bug": silent_bugs.BUGS, "mechanism": silent_bugs.MECHANISMS, "test": silent_bugs.TESTS}
        right = right_answers(bug)
        wrong = {part: given.get(part) for part in right if given.get(part) != right[part]}
        reasons = [
            f"{part}: {NOT_RIGHT if value in lists[part] else 'none of the choices.'}"
            for part, value in ((part, str(value)) for part, value in wrong.items())
        ]
        points = 0 if "bug" in wrong else len(right) - len(wrong)
        reason = reasons[0] if "bug" in wrong else " ".join(reasons)
        marks.append(Mark(FORM, f"run {letter}", points, len(right), reason))
    return marks


def grade(
    folder: Path,
    sandbox: Sandbox,
    seed: int,
    key: str | None = None,
    bugs: bool = False,
    exercises: list[Exercise] = EXERCISES,
) -> list[Mark]:
    """The marks of a submission: for each function, then for each silent bug; with a key, only for what it draws."""
    asked = exercises if key is None else variants(key)
    marks = [grade_function(exercise, folder, sandbox, seed + i) for i, exercise in enumerate(asked)]
    return marks + (grade_bugs(folder, key) if key is None or bugs else [])


def parts(marks: list[Mark]) -> dict[str, tuple[int, int]]:
    """Points and possible points for the functions and, if graded, for the silent bugs."""
    split = {"functions": [m for m in marks if m.file != FORM], "silent bugs": [m for m in marks if m.file == FORM]}
    return {part: (sum(m.points for m in some), sum(m.most for m in some)) for part, some in split.items() if some}


def weighted(marks: list[Mark]) -> tuple[float, int]:
    """The mark and its maximum, in percent of the course: points alone do not weigh the parts."""
    found = parts(marks)
    score = sum(WEIGHTS[part] * points / most for part, (points, most) in found.items())
    return round(score, 2), sum(WEIGHTS[part] for part in found)


def summary(marks: list[Mark]) -> str:
    score, most = weighted(marks)
    points = (f"{part} {points} of {best} points" for part, (points, best) in parts(marks).items())
    return f"{', '.join(points)}; {score} of {most} percent of the course"


def gradescope(marks: list[Mark], seconds: float, seed: int) -> str:
    """Gradescope's results.json."""
    tests = [
        {
            "name": f"{mark.file}: {mark.name}",
            "score": mark.points,
            "max_score": mark.most,
            "status": "passed" if mark.points == mark.most else "failed",
            "output": mark.reason,
            "visibility": "after_published"
            if mark.file == FORM
            else "visible",  # a form could be guessed in a few tries
        }
        for mark in marks
    ]
    shown = [mark for mark in marks if mark.file != FORM]
    text = f"{summary(shown)}. Seed of the cases: {seed}"
    record = {"score": weighted(marks)[0], "execution_time": round(seconds), "output": text, "tests": tests}
    return json.dumps(record, indent=1) + "\n"


def suite(name: str, marks: list[Mark], seconds: float) -> ElementTree.Element:
    """JUnit's test suite: one test case per function and run, with a failure if points are missing."""
    lost = [mark for mark in marks if mark.points < mark.most]
    made = ElementTree.Element(
        "testsuite", name=name, tests=str(len(marks)), failures=str(len(lost)), errors="0", time=f"{seconds:.1f}"
    )
    for mark in marks:
        case = ElementTree.SubElement(made, "testcase", classname=mark.file, name=mark.name)
        if mark in lost:
            text = f"{mark.points} of {mark.most} points: {mark.reason}"
            ElementTree.SubElement(case, "failure", message=text)
    return made


def xml(element: ElementTree.Element) -> str:
    """The text of a JUnit file."""
    ElementTree.indent(element)
    return ElementTree.tostring(element, encoding="unicode", xml_declaration=True) + "\n"


def need_a_sandbox() -> None:
    """End the program if submissions cannot be confined here."""
    if not CONFINES:
        fail("the grader's sandbox needs Linux on x86-64 or ARM64: run it there or in a container.")


def no_sandbox(problem: RuntimeError) -> NoReturn:
    fail(f"the sandbox does not work on this machine ({problem}): grade on another machine.", code=1)


def main(args: Args) -> None:
    if not args.submission.is_dir():
        fail(f"{args.submission} is not a folder: pass the folder that was handed in.")
    for path in (args.json, args.junit):
        if path and not path.absolute().parent.is_dir():
            fail(f"{path.parent} is not a folder: create it, or write {path.name} elsewhere.")
    need_a_sandbox()
    seed, start = secrets.randbits(32) if args.seed is None else args.seed, time.monotonic()
    try:
        with Sandbox(args.seconds, args.memory_mb) as sandbox:
            marks = grade(args.submission, sandbox, seed, args.key, args.bugs)
    except RuntimeError as problem:
        no_sandbox(problem)
    seconds = time.monotonic() - start
    for mark in marks:
        say(f"{mark.points} of {mark.most}  {mark.file}: {mark.name}  {mark.reason}".rstrip())
    say(f"{summary(marks)}; seed of the cases: {seed}")
    if args.json:
        args.json.write_text(gradescope(marks, seconds, seed))
    if args.junit:
        args.junit.write_text(xml(suite("exercises", marks, seconds)))


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
