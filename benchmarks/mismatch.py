"""How the engine's precision affects training: mismatch, and the effect of TIS.

    python -m benchmarks.mismatch             # 30 runs of 20 steps, two at a time: about 17 minutes on two cores
    python -m benchmarks.mismatch --redraw    # only the table again, from mismatch.json

`grpo.py` on the embedded default. The engine samples in fp32, in bf16, or in bf16 with 8-bit weights; the learner
computes in fp32 or in bf16, with or without the output layer in fp32 on both sides; TIS is off or capped at 2.
"""

import itertools
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks import methods
from benchmarks.methods import run
from common.cli import fail
from tools.reports import read_report, write_report
from tools.stats import interval

import tyro

# the engine's precision, the learner's, and whether both compute the output layer in fp32
SETTINGS = [
    ("fp32", "fp32", False),
    ("bf16", "fp32", False),
    ("fp8", "fp32", False),
    ("bf16", "bf16", False),
    ("bf16", "bf16", True),
]
CAPS = ["0", "2"]
KEPT = {"step", "eval/avg", "accuracy", "mismatch_mean", "mismatch_max", "tis", "tis_weight", "tis_truncated"}


@dataclass
class Args(methods.Args):
    steps: int = 20
    """Rollout batches of each run."""


def table(runs: list[dict]) -> str:
    lines = [
        "| engine | learner | fp32 output layer | TIS | mean \\|Δp\\| | largest \\|Δp\\| | avg@16 after |",
        "|" + "---|" * 7,
    ]
    for setting in SETTINGS:
        for cap in CAPS:
            mine = [r for r in runs if (r["setting"], r["cap"]) == (list(setting), cap)]
            steps = [row for r in mine for row in r["log"][1:]]
            mean, half = interval([r["log"][-1]["eval/avg"] for r in mine])
            mismatch = statistics.mean(row["mismatch_mean"] for row in steps)
            largest = max(row["mismatch_max"] for row in steps)
            tis = "off" if cap == "0" else f"C = {cap}"
            engine, learner, head = setting
            names = f"{engine} | {learner} | {'yes' if head else 'no'} | {tis}"
            lines.append(f"| {names} | {mismatch:.1e} | {largest:.1e} | {mean:.3f} ± {half:.3f} |")
    return "\n".join(lines)


def main(args: Args) -> None:
    if args.seeds < 2:
        fail("--seeds: an interval takes at least 2.")
    if not args.redraw:

        def one(job: tuple) -> dict:
            seed, (engine, learner, head), cap = job
            flags = ("--rollout-precision", engine, "--learner-precision", learner, "--tis-cap", cap)
            flags += ("--fp32-lm-head",) if head else ()
            return {"setting": [engine, learner, head], "cap": cap, **run("grpo", seed, args.steps, flags, KEPT)}

        plan = [(seed, *rest) for seed in range(1, args.seeds + 1) for rest in itertools.product(SETTINGS, CAPS)]
        with ThreadPoolExecutor(args.jobs) as pool:
            runs = list(pool.map(one, plan))
        write_report("mismatch", runs)
    print(table(read_report("mismatch")))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
