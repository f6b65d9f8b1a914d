"""Scripts with 1, 2 and 3 processes on a CPU: how much their weights and metrics differ after three steps.

    python -m benchmarks.agreement          # about two hours; resumable; writes reports/agreement.json

Each script makes a short run without further flags, r1.py as R1-Zero, and one with those of OPTIONS that it has.
Differences of weights are absolute; those of metrics are relative to the larger of 1 and their value.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common.cli import flag
from common.metrics import read_metrics
from tools.reports import read_report, today, write_report
from tools.scripts import ROOT, command, load, parents, script_path

import tyro
from safetensors.torch import load_file

SHORT = dict(
    steps=3,
    num_minibatches=2,
    prompts_per_step=6,
    responses_per_prompt=4,
    eval_problems=5,
    eval_samples=2,
    eval_every=0,
    save_every=0,
)
OPTIONS = dict(
    kl_beta=0.05,
    gradient_checkpointing=True,
    fp32_lm_head=True,
    staleness=1,
    micro_batch_tokens=300,
    overlong_filter=True,
    divergence="topk-kl",
    target=0.9,
    renew_at_kl=1e-5,
)

OWN = {
    # On search-hard some step has no signal, and AdamW turns the rounding error of a zero gradient into an update.
    "replay": dict(dataset="search"),
    "curriculum": dict(dataset="search"),
    "gdpo": dict(reward=("correct", "docs/rewards/format.py:short=0.2")),  # it is about several rewards
}


def run(processes: int, script: str, settings: dict[str, object], folder: Path) -> None:
    known = load(script).Args.__dataclass_fields__
    flags = [
        text
        for name, value in settings.items()
        if name in known
        for text in [flag(name), *([] if value is True else value if isinstance(value, tuple) else [str(value)])]
    ]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    words = [sys.executable, *(launcher if processes > 1 else []), *command(script_path(script))]
    subprocess.run(
        [*words, *flags, "--run-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )


def differences(one: Path, other: Path) -> dict[str, float]:
    last = "checkpoint-000003/model.safetensors"
    weights, weights_ = load_file(one / last), load_file(other / last)
    pairs = [
        (row[name], row_[name])
        for row, row_ in zip(read_metrics(one), read_metrics(other), strict=True)
        for name in row
        if row[name] is not None and "second" not in name
    ]
    return {
        "weights": max(float((weights[name] - weights_[name]).abs().max()) for name in weights),
        "metrics": max(abs(a - b) / max(1, abs(a)) for a, b in pairs),
    }


def main() -> None:
    results = read_report("agreement", {})
    for script in parents():
        for kind, settings in (("plain", SHORT), ("with options", SHORT | OPTIONS)):
            key = f"{script}, {kind}"
            if key in results:
                continue
            with tempfile.TemporaryDirectory() as folder:
                paths = [Path(folder) / str(n) for n in (1, 2, 3)]
                if "teacher" in load(script).Args.__dataclass_fields__:
                    # The teacher is not the student itself, from which there would be nothing to learn but rounding.
                    settings = settings | {"teacher": "sums-filler"}
                settings = settings | OWN.get(script, {})
                for n, path in enumerate(paths, 1):
                    run(n, script, settings, path)
                found = [differences(paths[0], path) for path in paths[1:]]
            results[key] = {name: max(f[name] for f in found) for name in ("weights", "metrics")} | {"date": today()}
            print(f"| {key} | {results[key]['weights']:.1e} | {results[key]['metrics']:.1e} |", flush=True)
            write_report("agreement", results)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
