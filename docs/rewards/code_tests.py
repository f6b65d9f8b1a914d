"""Code that passes its tests: the response's last ```python block, then the problem's answer, which is assertions.

    --dataset problems.jsonl --reward docs/rewards/code_tests.py:passes_tests

`passes_tests_or_says_why` also returns the test that failed and its error, as feedback for methods/sdpo.py.

The code runs in a separate process with limits on time, memory, and the size of files and output (1 MiB). That stops
accidents, not attacks: for code that you do not trust, run the whole training in a container without a network.
"""

import re
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
from typing import Any

SECONDS, MEMORY, FILE_SIZE = 5, 1 << 30, 1 << 20
LONGEST = 200  # characters of an error, and of a line, in feedback


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))


def run(program: str, errors: Any = subprocess.STDOUT) -> tuple[int, str] | None:
    """Run a program: its exit code and its output, with its errors; None if it takes too long."""
    # The size of a file is limited, that of a pipe is not, and a pipe would wait for processes left behind.
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        command = [sys.executable, "-I", "-c", program]
        files = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": errors}
        try:
            done = subprocess.run(command, cwd=folder, env={}, timeout=2 * SECONDS, preexec_fn=limit, **files)
        except subprocess.TimeoutExpired:
            return None
        output.seek(0)
        return done.returncode, output.read(FILE_SIZE).decode(errors="replace")


def passes_tests_or_says_why(problem, text: str, tokens: list[int], truncated: bool) -> tuple[float, str]:
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    if truncated or not blocks:
        return 0.0, "There is no finished block of Python code."
    # Code that ends the process before the tests have run does not print the secret.
    secret = secrets.token_hex(16)
    program = f"{blocks[-1]}\n{problem.answer}\nprint({secret!r})\n"
    with tempfile.TemporaryFile() as errors:
        done = run(program, errors)
        errors.seek(0)
        said = errors.read(FILE_SIZE).decode(errors="replace").rstrip()
    if done is None or done[0] in (-signal.SIGXCPU, -signal.SIGKILL):
        return 0.0, "The code takes too long."
    if done[0] == 0 and done[1].strip().endswith(secret):
        return 1.0, ""
    lines, place = program.split("\n"), re.search(r'^  File "<string>", line (\d{1,6})\b', said, re.MULTILINE)
    if not place or int(place[1]) > len(lines):
        return 0.0, "The code ends the process before the tests have passed."
    error = said.splitlines()[-1]
    return 0.0, f"{error[:LONGEST]} in the line: {lines[int(place[1]) - 1].strip()[:LONGEST]}"


def passes_tests(problem, text: str, tokens: list[int], truncated: bool) -> float:
    return passes_tests_or_says_why(problem, text, tokens, truncated)[0]
