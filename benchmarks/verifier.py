"""The verifier's answers per second, and its workers' memory over many answers.

python -m benchmarks.verifier             # about a minute; writes reports/verifier.json

Rules in this process compare numbers, and math-verify in two worker processes compares expressions. Medians of
interleaved repetitions. All answers differ, so that none is judged twice.
"""

import json
import statistics
import time
from pathlib import Path

from common.settings import DataSettings
from common.verification import Verifier

import tyro

REPEATS = 5


def resident_mib(verifier: Verifier) -> float:
    """Resident memory of the workers and their children, in MiB."""
    total = 0.0
    for worker in verifier.pool.workers:
        pid = worker.process.pid
        for process in (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
            total += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096 / 2**20
    return total


def main() -> None:
    args = DataSettings(max_response_tokens=1, temperature=1.0, seed=0)
    verifier = Verifier(args, None, [])
    rates: dict[str, list[float]] = {"numbers": [], "expressions": []}
    memory = []
    for repeat in range(REPEATS + 1):
        cases = {
            "numbers": ([rf"so it is \boxed{{{repeat * 20_000 + i}}}" for i in range(20_000)], "7"),
            "expressions": ([rf"so it is \boxed{{x^2+{i}x+{repeat}}}" for i in range(1_000)], "(x+1)^2"),
        }
        for name, (answers, gold) in cases.items():
            start = time.perf_counter()
            verifier.judge(answers, [gold] * len(answers), [False] * len(answers))
            rates[name].append(len(answers) / (time.perf_counter() - start))
        memory.append(resident_mib(verifier))
    verifier.close()
    result = {
        "answers_per_second": {name: statistics.median(values[1:]) for name, values in rates.items()},
        "workers_mib_after_each_thousand_expressions": memory,
    }
    print(json.dumps(result, indent=2))
    (Path(__file__).parent.parent / "reports" / "verifier.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
