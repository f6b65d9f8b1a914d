"""Measure how reliably a named statistic distinguishes each silent bug from healthy runs.

    python -m notebooks.exercises.bug_power           # practice runs, and what --more left in runs/silent_bugs
    python -m notebooks.exercises.bug_power --more    # three more runs with each bug, and healthy ones; resumable

A bug's statistic is a panel's mean logarithm over the steps of a run. Students see three seeds of a run and three
healthy ones: the bug is detected if the two means differ by more than the logarithm of the factor in key.py. Power and
false alarms assume normally distributed statistics with the measured means and deviations. Writes
reports/silent_bugs.json with the statistic of every run.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from statistics import NormalDist, fmean, variance
from typing import Any

from common.cli import say
from common.help import parse_args
from notebooks.exercises.key import KEPT, STATISTICS, plan
from notebooks.exercises.make_bugs import SEEDS, SETTINGS, Block, blocks, run_all, seeds
from tools.scripts import ROOT

REPORT = ROOT / "reports" / "silent_bugs.json"


@dataclass
class Args:
    more: bool = False
    """Make runs besides the practice runs."""


def own_blocks() -> list[Block]:
    """A run with each bug, and one without it unless the practice runs have a healthy run with these settings."""
    drawn, made = seeds("power", 2 * len(SETTINGS)), []
    enough = [SETTINGS[settings][:2] for bug, settings in plan().values() if bug == "healthy"]
    for i, (bug, (script, flags, change)) in enumerate(SETTINGS.items()):
        made.append((f"{bug}-with", script, flags, drawn[2 * i], change))
        if (script, flags) not in enough:
            made.append((f"{bug}-without", script, flags, drawn[2 * i + 1], None))
    return made


def statistic(log: list[dict[str, float]], panel: str) -> float:
    return fmean(math.log(max(row[panel], 1e-12)) for row in log)


def measure(bug: str, with_bug: list[float], without: list[float]) -> dict[str, Any]:
    """Power, and the probability of a false alarm, for the mean of SEEDS runs against that of SEEDS healthy ones."""
    panel, factor = STATISTICS[bug]
    way, least = math.copysign(1, math.log(factor)), abs(math.log(factor))
    gap, spread = way * (fmean(with_bug) - fmean(without)), variance(without)
    return {
        "panel": panel,
        "factor": factor,
        "with": [round(x, 4) for x in with_bug],
        "without": [round(x, 4) for x in without],
        "power": 1 - NormalDist(gap, math.sqrt((variance(with_bug) + spread) / SEEDS)).cdf(least),
        "false_alarms": 1 - NormalDist(0, math.sqrt(2 * spread / SEEDS)).cdf(least),
    }


def measured(all_runs: dict[str, list[Any]], all_blocks: list[Block]) -> Iterator[tuple[str, dict[str, Any]]]:
    """By bug, `measure` of all its runs against all healthy runs with the same script and settings."""
    for bug, settings in SETTINGS.items():
        groups: list[list[float]] = []
        for change in (settings[2], None):
            alike = [name for name, *more in all_blocks if (more[0], more[1], more[3]) == (*settings[:2], change)]
            groups.append([statistic(log, STATISTICS[bug][0]) for name in alike for log in all_runs[name]])
        yield bug, measure(bug, *groups)


def main(args: Args) -> None:
    more = [block for block in own_blocks() if args.more or (KEPT / "power" / f"{block[0]}.json").exists()]
    logs = run_all(KEPT / "practice", blocks(None)) | run_all(KEPT / "power", more)
    found = dict(measured(logs, blocks(None) + more))
    for bug, row in found.items():
        say(f"{bug}: {row['panel']}, power {row['power']:.4f}, false alarms {row['false_alarms']:.4f}")
    command = "python -m notebooks.exercises.bug_power --more"
    REPORT.write_text(json.dumps({"command": command, "date": str(date.today()), "bugs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
