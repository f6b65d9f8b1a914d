"""Which tests execute a line, and how long each takes: from one run of the tests under coverage.py."""

import os
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

from common.cli import fail
from tools.scripts import ROOT

import coverage

LAYERS = (["-m", "not slow"], ["-m", "slow", "tests/claims", "tests/course/test_handout.py"])
BUDGET = 120.0  # seconds of tests for one place


def failed(output: str) -> list[str]:
    """The tests that pytest reports as failed."""
    return re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.M)


class Tested:
    """The tests of each line of some folders, recorded in `data` (coverage.py's file; pytest's output is beside it)."""

    def __init__(self, data: Path, folders: tuple[str, ...], jobs: int) -> None:
        self.data, log = data, data.with_suffix(".log")
        if not log.exists():
            self.record(folders, jobs, log)
        text = log.read_text()
        self.lines, self.text = cache(self.lines), cache(self.text)
        self.failing, self.seconds = failed(text), defaultdict[str, float](float)
        for seconds, test in re.findall(r"^([\d.]+)s (?:call|setup|teardown) +(.+)$", text, re.M):
            self.seconds[test] += float(seconds)

    def record(self, folders: tuple[str, ...], jobs: int, log: Path) -> None:
        settings = self.data.with_suffix(".cfg")
        settings.write_text(f"[run]\nsource = {','.join(folders)}\ndata_file = {self.data}\n")
        coverage = ["--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report=", "--cov-append"]
        self.data.unlink(missing_ok=True)
        output = ""
        for layer in LAYERS:
            words = ["-n", str(jobs), "-rfE", "--durations=0", "-p", "no:cacheprovider", *coverage, *layer]
            ran = subprocess.run(
                [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"},
                capture_output=True, text=True,
            )  # fmt: skip
            if ran.returncode > 1:
                fail(f"the tests do not run: {ran.stdout[-500:]}", code=1)
            output += ran.stdout
        log.write_text(output)

    def lines(self, file: str) -> dict[int, set[str]]:
        """The tests that execute each line of a file."""
        data = coverage.CoverageData(str(self.data))
        data.read()
        by_line = data.contexts_by_lineno(str(ROOT / file))
        return {line: {name.rpartition("|")[0] for name in names if name} for line, names in by_line.items()}

    def text(self, test_file: str) -> str:
        return (ROOT / test_file).read_text()

    def of(self, file: str, first: int, last: int, function: str) -> list[str]:
        """Tests that pass and execute one of the lines, at most BUDGET seconds of them. Those in a file with the
        same name come first, then those in files that name the function or its folder, then the quickest. For a line
        that runs in other processes, these are the tests that name its file. Tests with the file's name as a case,
        such as a claim's, come first of all."""
        lines = self.lines(file)
        found = set().union(*(lines.get(line, set()) for line in range(first, last + 1)))
        if not found:
            everything = set().union(*self.lines(file).values(), self.seconds)
            found = {
                test for test in everything if re.search(rf"\b{Path(file).stem}\b", self.text(test.split("::")[0]))
            }
        named = {test for test in self.seconds if f"[{Path(file).stem}]" in test}  # they may only read the file
        found = (found | named) - set(self.failing)
        words = [re.compile(rf"\b{re.escape(word)}\b") for word in (function, Path(file).parent.name)]

        def order(test: str) -> tuple:
            tests = test.split("::")[0]
            alike = Path(tests).stem.startswith(f"test_{Path(file).stem[:5]}")  # test_verify.py and verifier.py
            naming = (not word.search(self.text(tests)) for word in words)
            return (test not in named, not alike, *naming, self.seconds[test], test)

        chosen, left = [], BUDGET
        for test in sorted(found, key=order):
            if (seconds := self.seconds[test] + 0.01) < left or not chosen:
                chosen.append(test)
                left -= seconds
        return chosen
