"""Mutation tests: one line is changed at a time, and a test must fail.

    python -m tools.mutate                  # all, two at a time; about half an hour on two cores
    python -m tools.mutate --only grpo      # those of some scripts
    python -m tools.mutate --quick          # each mutation in one script only
    python -m tools.mutate --kept FILE      # keeps outcomes in FILE, to continue an interrupted run

Not part of the test suite: run it when the loops, the oracles or `tests/steps` change. Without --only, the table goes
to reports/mutations.md.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common.cli import fail
from tools.mutations import MUTATIONS, OBJECTIVES, RECIPES, STEPS, Mutation
from tools.reports import REPORTS, heading, today
from tools.scripts import ROOT, parents, script_path

INTRODUCTION = """
A test that cannot fail proves nothing. Each mutation changes one line in the loops, the objectives, the engines, the
distribution over processes, the grader or the claims, and the tests that should notice it run on the changed copy.
{quick}

{noticed} of {count} mutations are noticed.

"""


def places(mutation: Mutation, only: list[str], quick: bool) -> list[str]:
    """The files that a mutation changes, one at a time."""
    if mutation.file:
        name = Path(mutation.file).stem
        return [mutation.file] if not only or name in only or mutation.file.startswith("common/") else []
    files = [script_path(name) for name in parents()]
    found = [file for file in files if mutation.old in file.read_text() and (not only or file.stem in only)]
    return [str(file.relative_to(ROOT)) for file in (found[:1] if quick else found)]


def stale() -> list[str]:
    """The mutations whose line or test file no longer exists, in words."""
    found = []
    for m in MUTATIONS:
        files = [ROOT / m.file] if m.file else [script_path(name) for name in parents()]
        if not any(file.exists() and m.old in file.read_text() for file in files):
            found.append(f"{m.what}: {m.file or 'no script'} has no {m.old!r}")
        if not (ROOT / m.tests).exists():
            found.append(f"{m.what}: there is no {m.tests}")
    return found


def survives(mutation: Mutation, file: str) -> bool:
    """Whether the tests pass with the mutation in one file."""
    with tempfile.TemporaryDirectory() as work:
        copy = Path(work) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "runs", ".venv*", "__pycache__", "*.png"))
        text = (copy / file).read_text()
        (copy / file).write_text(text.replace(mutation.old, mutation.new))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", mutation.tests]
        if Path(file).stem in parents() and mutation.tests in (STEPS, OBJECTIVES, RECIPES):  # by script
            command += ["-k", Path(file).stem]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        result = subprocess.run(command, cwd=copy, capture_output=True, text=True, env=environment)
        # pytest returns 2 to 5 if tests did not run. A mutation that kills the process is noticed.
        if result.returncode in (2, 3, 4, 5):
            raise RuntimeError(f"{mutation.what}: {result.stdout[-2000:]} {result.stderr[-2000:]}")
        return result.returncode == 0


def table(jobs: list[tuple[Mutation, str]], outcomes: list[bool]) -> str:
    """A line per mutation: the files that it was made in, and the tests that noticed it."""
    lines = ["| mutation | in | noticed by |", "|---|---|---|"]
    for mutation in MUTATIONS:
        mine = [(Path(file).stem, alive) for (m, file), alive in zip(jobs, outcomes, strict=True) if m is mutation]
        if mine:
            survivors = [name for name, alive in mine if alive]
            verdict = f"**survived in {', '.join(survivors)}**" if survivors else f"`{mutation.tests}`"
            what = mutation.what.replace("|", "\\|")
            lines.append(f"| {what} | {', '.join(name for name, _ in mine)} | {verdict} |")
    return "\n".join(lines) + "\n"


def page(jobs: list[tuple[Mutation, str]], outcomes: list[bool], quick: bool) -> str:
    """reports/mutations.md."""
    command = "python -m tools.mutate" + (" --quick" if quick else "")
    where = (
        "Each mutation was made in one script." if quick else "A mutation was made in every script that has the line."
    )
    noticed = len(jobs) - sum(outcomes)
    introduction = INTRODUCTION.format(quick=where, noticed=noticed, count=len(jobs))
    return heading("Mutation tests", command, [today()]) + introduction + table(jobs, outcomes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--kept", type=Path, help="file of outcomes; mutations in it are not tried again")
    args = parser.parse_args()
    if lines := stale():
        fail("these mutations no longer apply, so correct or remove them: " + "; ".join(lines))
    jobs = [(mutation, file) for mutation in MUTATIONS for file in places(mutation, args.only, args.quick)]
    kept = json.loads(args.kept.read_text()) if args.kept and args.kept.exists() else {}

    def outcome(job: tuple[Mutation, str]) -> bool:
        mutation, file = job
        key = f"{file}: {mutation.old} -> {mutation.new}"
        if key not in kept:
            kept[key] = survives(mutation, file)
            print(f"{'SURVIVED' if kept[key] else 'noticed'}: {mutation.what}, {file}", file=sys.stderr, flush=True)
            if args.kept:
                args.kept.write_text(json.dumps(kept, indent=1))
        return kept[key]

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(outcome, jobs))
    if not args.only:
        (REPORTS / "mutations.md").write_text(page(jobs, outcomes, args.quick))
    print(table(jobs, outcomes) + f"\n{len(jobs) - sum(outcomes)} of {len(jobs)} noticed")
    raise SystemExit(any(outcomes))


if __name__ == "__main__":
    main()
