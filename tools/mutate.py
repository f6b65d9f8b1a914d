"""Mutation tests: one place is changed at a time, and a test must fail.

    python -m tools.mutate                   # the lists in tools/mutations/; hours on two cores
    python -m tools.mutate --quick           # each mutation of the list in one script only
    python -m tools.mutate --only run.py     # only mutations of some files
    python -m tools.mutate --generated 300   # a seeded sample, this large, of those that tools/operators.py makes
    python -m tools.mutate --minutes 20      # a random sample: starts none after 20 minutes

Outcomes are kept in a file (--kept), so that a run can be interrupted; remove it when code or tests have changed. Tests
first run on the unchanged code; those that fail there do not count. For --generated, they run once under coverage.py,
which says which tests execute a line. Not part of the test suite: run it when the loops, the oracles or `tests/steps`
change. Without --only, the results go to reports/mutations.md, or with --generated to
reports/generated_mutations.md. tools/equivalent.json lists generated mutations that change nothing, with the reason.
"""

import argparse
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common.cli import fail, say
from tools.mutations import MUTATIONS
from tools.mutations.mutation import OBJECTIVES, STEPS, Mutation
from tools.operators import mutations
from tools.reports import REPORTS, heading, today
from tools.scripts import ROOT, parents, script_path
from tools.tested import Tested, failed

FOLDERS = ("common", "claims", "notebooks/exercises", "worlds")  # where mutations are generated
EQUIVALENT = ROOT / "tools" / "equivalent.json"  # by key, why a generated mutation changes nothing
LATE = "the time limit"  # of the tests, in place of a test's name
INTRODUCTION = """
A test that cannot fail proves nothing. Each mutation changes one line in the loops, the objectives, the engines, the
distribution over processes, the verifier, or the claims. The tests that should notice it run on the changed copy, and
the table names the first one that failed. {where}

{run} of {count} mutations were run, and {noticed} of these {run} were noticed.

"""
GENERATED = """
Each mutation changes one place in `{folders}`: a comparison, a constant, a sign or operator, the order of two
arguments, a name, or a line that is left out. They are a random sample (seed {seed}) of the {all} that the syntax trees
give. Tests that execute the place, at most two minutes of them, ran on the changed copy: those of the quick layer, and
the slow ones of the claims and the handout. Tests that fail on the unchanged code were left out: {failing}.

{run} of the {count} in the sample were run. {noticed} were noticed, {equivalent} change nothing that could be noticed,
and {survived} survived.

"""
Job = tuple[Mutation, str]  # and the file that it is made in


def places(mutation: Mutation, only: list[str], quick: bool) -> list[str]:
    """The files that a mutation changes, one at a time; with `quick`, only one, always the same."""
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


def sample(count: int, seed: int) -> tuple[list[Mutation], int]:
    """A sample of generated mutations, and how many there are in all."""
    files = [str(file.relative_to(ROOT)) for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    found = [mutation for file in files for mutation in mutations(file)]
    return random.Random(seed).sample(found, min(count, len(found))), len(found)


def changed(text: bytes, mutation: Mutation) -> bytes:
    old, new, start = mutation.old.encode(), mutation.new.encode(), mutation.start
    return text.replace(old, new) if start < 0 else text[:start] + new + text[start + len(old) :]


def command(mutation: Mutation, file: str) -> list[str]:
    """What follows `pytest`, for the tests that should notice a mutation of the list."""
    tests, bracket, cases = mutation.tests.partition("[")  # FILE::test[a stands for all cases that begin with a
    if bracket:
        return ["-m", "", tests, "-k", f"[{cases}"]
    words = ["-m", "", tests]
    if (name := Path(file).stem) in parents() and mutation.tests in (STEPS, OBJECTIVES):  # by script
        words += ["-k", f"[{name}-" if mutation.tests == STEPS else name]
    return words


class Tests:
    """Runs tests on copies of the repository, and knows their results on the unchanged one."""

    def __init__(self, baseline: dict[str, Any], tested: Tested | None = None) -> None:
        self.baseline = baseline  # by command: the tests that fail, and seconds
        self.tested = tested  # for generated mutations
        self.own = threading.local()  # each thread's process of tools/preloaded.py

    def pytest(self, folder: Path, words: list[str], ids: list[str] | None, limit: float) -> tuple[int, str] | None:
        """pytest's exit code and output in a folder; None if it took longer than `limit` seconds."""
        if getattr(self.own, "process", None) is None:
            self.own.process = subprocess.Popen(
                [sys.executable, str(ROOT / "tools" / "preloaded.py")], env=os.environ | {"OMP_NUM_THREADS": "1"},
                text=True, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        process, output = self.own.process, folder.parent / "output"
        process.stdin.write(json.dumps([str(folder), str(output), words, ids]) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], limit)[0]:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.own.process = None
            return None
        return int(process.stdout.readline()), output.read_text(errors="replace")

    def run(
        self, words: list[str], mutation: Mutation | None, file: str, limit: float, ids: list[str] | None = None
    ) -> str | None:
        """pytest's output on a copy with a mutation, "" if all passed; None if it took longer than `limit` seconds."""
        with tempfile.TemporaryDirectory() as work:
            copy = Path(work) / "copy"
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "runs", ".venv*", "__pycache__", "*.mp4"))
            if mutation:
                (copy / file).write_bytes(changed((copy / file).read_bytes(), mutation))
            ended = self.pytest(copy, ["-q", "-rfE", "-p", "no:cacheprovider", *words], ids, limit)
        if ended is None:
            return None
        code, output = ended
        # pytest returns 2 to 5 if tests did not run. A mutation that kills the process is noticed.
        if code in (3, 4, 5) or (code == 2 and not mutation):
            raise RuntimeError(f"{' '.join(words)}: {output[-2000:]}")
        return output if code else ""

    def on_unchanged(self, words: list[str]) -> dict[str, Any]:
        """The tests that fail without a mutation, and how long all take."""
        if (key := " ".join(words)) not in self.baseline:
            start = time.monotonic()
            output = self.run(words, None, "", 24 * 3600)
            self.baseline[key] = {"failing": failed(output or ""), "seconds": time.monotonic() - start}
        return self.baseline[key]

    def noticed_by(self, mutation: Mutation, file: str) -> str:
        """The first test that fails with the mutation in one file, and not without it; "" if none does."""
        if mutation.start >= 0:
            text = (ROOT / file).read_bytes()
            first = text[: mutation.start].count(b"\n") + 1
            function = mutation.what.rpartition(" ")[2]
            ids = self.tested.of(file, first, first + mutation.old.count("\n"), function)
            words = ["-m", "", *dict.fromkeys(test.split("::")[0] for test in ids)]
            limit = 300 + 10 * sum(self.tested.seconds[test] for test in ids)
            output = self.run(["-x", *words], mutation, file, limit, ids) if ids else ""
        else:
            words = command(mutation, file)
            known = self.on_unchanged(words)
            without = [word for test in known["failing"] for word in ("--deselect", test)]
            output = self.run(["-x", *words, *without], mutation, file, 300 + 5 * known["seconds"])
        if output is None:
            return LATE
        return (failed(output) or [mutation.tests or words[-1]])[0] if output else ""


def table(outcomes: list[tuple[Mutation, str, str]]) -> str:
    """A line per mutation and file, with the test that noticed it."""
    lines = ["| mutation | in | noticed by |", "|---|---|---|"]
    for mutation, file, test in outcomes:
        what = mutation.what.replace("|", "\\|")
        if mutation.start >= 0:
            change = key((mutation, file)).removeprefix(f"{file}: {what}: ").replace("|", "\\|").replace("`", "'")
            what = f"{what}: `{change}`"
        name = test.partition("[")[0]
        lines.append(f"| {what} | {file} | {f'`{name}`' if name else '**nothing**'} |")
    return "\n".join(lines) + "\n"


def key(job: Job) -> str:
    """The name of a mutation in one file, which stays the same when lines move: a generated one shows its line."""
    mutation, file = job
    if mutation.start < 0:
        return f"{file}: {mutation.old} -> {mutation.new}"
    text, end = (ROOT / file).read_bytes(), mutation.start + len(mutation.old.encode())
    before, behind = text[: mutation.start].rpartition(b"\n")[2].decode(), text[end:].partition(b"\n")[0].decode()
    return " ".join(f"{file}: {mutation.what}: {before}[{mutation.old} -> {mutation.new}]{behind}".split())


def page(jobs: list[Job], outcomes: list[tuple[Mutation, str, str]], quick: bool, flags: str) -> str:
    """reports/mutations.md."""
    where = "Each mutation was made in one file." if quick else "A mutation was made in every script that has the line."
    noticed = sum(bool(test) for *_, test in outcomes)
    introduction = INTRODUCTION.format(where=where, run=len(outcomes), count=len(jobs), noticed=noticed)
    return heading("Mutation tests", f"python -m tools.mutate{flags}", [today()]) + introduction + table(outcomes)


def generated_page(
    outcomes: list[tuple[Mutation, str, str]], args: argparse.Namespace, total: int, tests: Tests
) -> str:
    """reports/generated_mutations.md: survivors, what has no effect, and how many were noticed in each file."""
    known = json.loads(EQUIVALENT.read_text())
    lost = [outcome for outcome in outcomes if not outcome[2]]
    survivors = [outcome for outcome in lost if key(outcome[:2]) not in known]
    failing = sorted(tests.tested.failing)
    introduction = GENERATED.format(
        folders="`, `".join(FOLDERS), seed=args.seed, all=total, run=len(outcomes),
        failing=", ".join(f"`{test}`" for test in failing) or "none", count=args.generated,
        noticed=len(outcomes) - len(lost), equivalent=len(lost) - len(survivors), survived=len(survivors),
    )  # fmt: skip
    parts = [introduction, "## Survivors\n\n", table(survivors)]
    reasons = [f"- `{name}`: {known[name]}\n" for name in map(key, (outcome[:2] for outcome in lost)) if name in known]
    files = Counter(file for _, file, test in outcomes if test)
    noticed = [f"| {file} | {count} |\n" for file, count in sorted(files.items())]
    parts += ["\n## Without effect\n\n", *reasons, "\n## Noticed\n\n| in | mutations |\n|---|---|\n", *noticed]
    flags = f" --generated {args.generated} --seed {args.seed}"
    return heading("Generated mutations", f"python -m tools.mutate{flags}", [today()]) + "".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--generated", type=int, default=0, help="number of generated mutations, instead of the list")
    parser.add_argument("--seed", type=int, default=0, help="of the sample of generated mutations")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=2, help="mutations at a time")
    parser.add_argument(
        "--kept", type=Path, default=ROOT / "runs" / "mutations.json",
        help="file of outcomes; mutations in it are not tried again",
    )  # fmt: skip
    args = parser.parse_args()
    if lines := stale():
        fail("these mutations no longer apply, so correct or remove them: " + "; ".join(lines))
    args.kept.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(args.kept.read_text()) if args.kept.exists() else {}
    tests, total = Tests(kept.setdefault("on unchanged code", {})), 0
    if args.generated:
        tests.tested = Tested(args.kept.with_suffix(".coverage").resolve(), FOLDERS, args.jobs)
        some, total = sample(args.generated, args.seed)
        jobs = [(mutation, str(mutation.file)) for mutation in some]
        jobs = [job for job in jobs if not args.only or Path(job[1]).name in args.only]
    else:
        jobs = [(mutation, file) for mutation in MUTATIONS for file in places(mutation, args.only, args.quick)]
    if not jobs:
        fail("--only names no file that a mutation changes: give file names, such as grpo.py.")
    end = time.monotonic() + 60 * args.minutes

    def run(job: Job) -> None:
        if key(job) in kept or time.monotonic() > end:
            return
        kept[key(job)] = test = tests.noticed_by(*job)
        say(f"{test or 'NOT NOTICED'}: {job[0].what}, {job[1]}", file=sys.stderr)
        args.kept.write_text(json.dumps(kept, indent=1))

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(run, random.Random(0).sample(jobs, len(jobs))))
    outcomes = [(*job, kept[key(job)]) for job in jobs if key(job) in kept]
    if args.generated and not args.only:
        (REPORTS / "generated_mutations.md").write_text(generated_page(outcomes, args, total, tests))
    elif not args.only:
        flags = " --quick" * args.quick + " --minutes M" * (len(outcomes) < len(jobs))
        (REPORTS / "mutations.md").write_text(page(jobs, outcomes, args.quick, flags))
    say(table(outcomes) + f"\n{sum(bool(test) for *_, test in outcomes)} of {len(outcomes)} noticed", keep="\n")
    equivalent = json.loads(EQUIVALENT.read_text())
    raise SystemExit(not all(test or key(job) in equivalent for *job, test in outcomes))


if __name__ == "__main__":
    main()
