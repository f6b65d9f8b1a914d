"""Code that passes its tests: the response's last ```python block, then the problem's answer, which is assertions.

    --dataset problems.jsonl --reward docs/rewards/code_tests.py:passes_tests

The code runs in a separate process with limits on time, memory and file size. That stops accidents, not attacks: for
code that you do not trust, run the whole training in a container without a network.
"""

import re
import resource
import secrets
import subprocess
import sys
import tempfile

SECONDS, MEMORY, FILE_SIZE = 5, 1 << 30, 1 << 20


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))


def run(program: str, errors: int = subprocess.STDOUT) -> subprocess.CompletedProcess | None:
    """Run a program, with its errors in the output; None if it takes too long."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return subprocess.run(
                [sys.executable, "-I", "-c", program],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                timeout=2 * SECONDS,
                preexec_fn=limit,
            )
        except subprocess.TimeoutExpired:
            return None


def passes_tests(problem, text: str, tokens: list[int], truncated: bool) -> float:
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    if truncated or not blocks:
        return 0.0
    # Code that ends the process before the tests have run does not print the secret.
    secret = secrets.token_hex(16)
    done = run(f"{blocks[-1]}\n{problem.answer}\nprint({secret!r})\n", errors=subprocess.DEVNULL)
    return float(
        done is not None and done.returncode == 0 and done.stdout.decode(errors="replace").strip().endswith(secret)
    )
