"""Mutation tests: one line is changed at a time, and a test must fail.

    python -m tools.mutate                  # all; hours on two cores
    python -m tools.mutate --quick          # each mutation in one script only
    python -m tools.mutate --only run.py    # those of some files
    python -m tools.mutate --minutes 20     # a random sample: starts none after 20 minutes
    python -m tools.mutate --kept FILE      # keeps outcomes in FILE, to continue an interrupted run

Not part of the test suite: run it when the loops, the oracles or `tests/steps` change. Without --only, what was
run, in this call or as kept in FILE, goes to reports/mutations.md.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common.cli import fail, say
from tools.mutations import MUTATIONS, OBJECTIVES, STEPS, Mutation
from tools.reports import REPORTS, heading, today
from tools.scripts import ROOT, parents, script_path

INTRODUCTION = """
A test that cannot fail proves nothing. Each mutation changes one line in the loops, the objectives, the engines, the
distribution over processes, the verifier, or the claims. The tests that should notice it run on the changed copy, and
the table names the first one that failed. {where}

{run} of {count} mutations were run, and {noticed} of these {run} were noticed.

"""
Job = tuple[Mutation, str]  # and the file that it is made in


def places(mutation: Mutation, only: list[str], quick: bool) -> list[str]:
    """The files that a mutation changes, one at a time; with `quick`, one of them that always stays the same."""
    files = [mutation.file] if mutation.file else [str(script_path(n).relative_to(ROOT)) for n in parents()]
    found = [file for file in files if mutation.old in (ROOT / file).read_text()]
    if quick:
        found = [found[zlib.crc32(f"{mutation.what} {mutation.new}".encode()) % len(found)]]
    return [file for file in found if not only or Path(file).name in only]


def stale() -> list[str]:
    """The mutations whose line or test no longer exists, in words."""
    found = []
    for m in MUTATIONS:
        files = [ROOT / m.file] if m.file else [script_path(name) for name in parents()]
        if not any(file.exists() and m.old in file.read_text() for file in files):
            found.append(f"{m.what}: {m.file or 'no script'} has no {m.old!r}")
        path, *names = m.tests.partition("[")[0].split("::")
        if not (ROOT / path).exists() or any(name not in (ROOT / path).read_text() for name in names):
            found.append(f"{m.what}: there is no {m.tests}")
    return found


def noticed_by(mutation: Mutation, file: str) -> str:
    """The first test that fails with the mutation in one file; "" if none does."""
    with tempfile.TemporaryDirectory() as work:
        copy = Path(work) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "runs", ".venv*", "__pycache__", "*.png"))
        text = (copy / file).read_text()
        (copy / file).write_text(text.replace(mutation.old, mutation.new))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "", "-p", "no:cacheprovider", mutation.tests]
        if (name := Path(file).stem) in parents() and mutation.tests in (STEPS, OBJECTIVES):  # by script
            command += ["-k", f"[{name}-" if mutation.tests == STEPS else name]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        result = subprocess.run(command, cwd=copy, capture_output=True, text=True, env=environment)
        # pytest returns 2 to 5 if tests did not run. A mutation that kills the process is noticed.
        if result.returncode in (2, 3, 4, 5):
            raise RuntimeError(f"{mutation.what}: {result.stdout[-2000:]} {result.stderr[-2000:]}")
        if result.returncode == 0:
            return ""
        failed = re.search(r"^(?:FAILED|ERROR) ([\w./]+(?:::\w+)*)", result.stdout, re.M)
        return failed[1] if failed else mutation.tests


def table(outcomes: list[tuple[Mutation, str, str]]) -> str:
    """A line per mutation and file, with the test that noticed it."""
    lines = ["| mutation | in | noticed by |", "|---|---|---|"]
    for mutation, file, test in outcomes:
        what = mutation.what.replace("|", "\\|")
        lines.append(f"| {what} | {file} | {f'`{test}`' if test else '**nothing**'} |")
    return "\n".join(lines) + "\n"


def page(jobs: list[Job], outcomes: list[tuple[Mutation, str, str]], quick: bool, flags: str) -> str:
    """reports/mutations.md."""
    where = "Each mutation was made in one file." if quick else "A mutation was made in every script that has the line."
    noticed = sum(bool(test) for *_, test in outcomes)
    introduction = INTRODUCTION.format(where=where, run=len(outcomes), count=len(jobs), noticed=noticed)
    return heading("Mutation tests", f"python -m tools.mutate{flags}", [today()]) + introduction + table(outcomes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=2, help="mutations at a time")
    parser.add_argument("--kept", type=Path, help="file of outcomes; mutations in it are not tried again")
    args = parser.parse_args()
    if lines := stale():
        fail("these mutations no longer apply, so correct or remove them: " + "; ".join(lines))
    jobs = [(mutation, file) for mutation in MUTATIONS for file in places(mutation, args.only, args.quick)]
    kept = json.loads(args.kept.read_text()) if args.kept and args.kept.exists() else {}
    end = time.monotonic() + 60 * args.minutes

    def key(job: Job) -> str:
        return f"{job[1]}: {job[0].old} -> {job[0].new}"

    def run(job: Job) -> None:
        if key(job) in kept or time.monotonic() > end:
            return
        kept[key(job)] = test = noticed_by(*job)
        say(f"{test or 'NOT NOTICED'}: {job[0].what}, {job[1]}", file=sys.stderr)
        if args.kept:
            args.kept.write_text(json.dumps(kept, indent=1))

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(run, random.Random(0).sample(jobs, len(jobs))))
    outcomes = [(*job, kept[key(job)]) for job in jobs if key(job) in kept]
    if not args.only:
        flags = " --quick" * args.quick + " --minutes M --kept FILE" * (len(outcomes) < len(jobs))
        (REPORTS / "mutations.md").write_text(page(jobs, outcomes, args.quick, flags))
    say(table(outcomes) + f"\n{sum(bool(test) for *_, test in outcomes)} of {len(outcomes)} noticed", keep="\n")
    raise SystemExit(not all(test for *_, test in outcomes))


if __name__ == "__main__":
    main()
