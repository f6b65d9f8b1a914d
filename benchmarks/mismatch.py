"""The sampler's precision against training: mismatch, and what TIS does to it.

    python -m benchmarks.mismatch             # 18 runs of 20 steps, two at a time: about 10 minutes on two cores
    python -m benchmarks.mismatch --redraw    # only the table again, from mismatch.json

`grpo.py` on the embedded default. The engine samples in fp32, in bf16, or in bf16 with 8-bit weights; the learner
computes in fp32. TIS with its cap of 2, and off.
"""

import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks import methods
from benchmarks.methods import interval, run

import tyro

HERE = Path(__file__).parent
KEPT = {"step", "eval/avg", "accuracy", "mismatch_mean", "mismatch_max", "tis", "tis_weight", "tis_truncated"}


@dataclass
class Args(methods.Args):
    steps: int = 20
    """Rollout batches of each run."""


def table(runs: list[dict]) -> str:
    lines = [
        "| sampler | TIS | mean \\|Δp\\| | largest \\|Δp\\| | avg@16 after |",
        "|---|---|---|---|---|",
    ]
    for precision in ("fp32", "bf16", "fp8"):
        for cap in ("0", "2"):
            mine = [r for r in runs if (r["precision"], r["cap"]) == (precision, cap)]
            steps = [row for r in mine for row in r["log"][1:]]
            mean, half = interval([r["log"][-1]["eval/avg"] for r in mine])
            mismatch = statistics.mean(row["mismatch_mean"] for row in steps)
            largest = max(row["mismatch_max"] for row in steps)
            tis = "off" if cap == "0" else "C = 2"
            lines.append(f"| {precision} | {tis} | {mismatch:.1e} | {largest:.1e} | {mean:.3f} ± {half:.3f} |")
    return "\n".join(lines)


def main(args: Args) -> None:
    file = HERE / "mismatch.json"
    if not args.redraw:

        def one(job: tuple[int, str, str]) -> dict:
            seed, precision, cap = job
            flags = ("--rollout-precision", precision, "--tis-cap", cap)
            return {"precision": precision, "cap": cap, **run("grpo", seed, args.steps, flags, KEPT)}

        seeds = range(1, args.seeds + 1)
        plan = [(seed, p, cap) for seed in seeds for p in ("fp32", "bf16", "fp8") for cap in ("0", "2")]
        with ThreadPoolExecutor(args.jobs) as pool:
            runs = list(pool.map(one, plan))
        file.write_text("[\n" + ",\n".join(json.dumps(r) for r in runs) + "\n]\n")
    print(table(json.loads(file.read_text())))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
