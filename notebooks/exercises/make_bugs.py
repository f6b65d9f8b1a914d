"""Run the silent bugs, the runs without a bug and their healthy twins, and write bugs.json.

    python -m notebooks.exercises.make_bugs          # two at a time; resumable: finished runs are in runs/silent_bugs

Each bug changes one line in a copy of the repository. key.py says which run has which bug. Neither file is in the handout.
"""

import json
import multiprocessing
import os
import runpy
import shutil
import sys
import tempfile
from datetime import date
from pathlib import Path

import common.transformers_engine  # these two are loaded once, for all forked runs
import common.verification.verifier  # noqa: F401
from common.folders import package_versions
from common.metrics import read_metrics
from notebooks.exercises.exercises import SIGNAL_LINE
from notebooks.exercises.mistakes import CONSTANT, GRPO_LOSS, INVERTED_LOSS, ROW_MEAN
from notebooks.exercises.silent_bugs import LOGS, PANELS
from tools.scripts import ROOT

FLAGS = (
    "--steps",
    "12",
    "--prompts-per-step",
    "8",
    "--responses-per-prompt",
    "6",
    "--lr",
    "2e-4",
    "--kl-beta",
    "0.05",
    "--engine",
    "transformers",
)
FLAGS += ("--eval-every", "0", "--eval-problems", "1", "--eval-samples", "1", "--save-every", "0")
KEPT = ROOT / "runs" / "silent_bugs"
AT_A_TIME = 2
SEEDS = 3  # of each run and of its healthy twin
# By letter, as in key.py: (script, flags beyond FLAGS for the run and its twin, (file, line, the line with the bug) or None)
RUNS = {
    "A": ("dapo", ("--overlong-cache", "80"),
          ("dapo.py", SIGNAL_LINE,
           "(kept if (2 * row - 1 + overlong_penalty(torch.tensor([len(t) for t in group.tokens]), args)).std() > 0 "
           "else spare)")),
    "B": ("grpo", (), None),
    "C": ("grpo", ("--kl-beta", "0.5", "--num-minibatches", "1"),
          ("grpo.py", "return torch.exp(ref_logp - logp) - (ref_logp - logp) - 1", "return logp - ref_logp")),
    "D": ("grpo", ("--lr", "2e-5"),
          ("common/models.py", "dtype=torch.float32", "dtype=torch.bfloat16")),
    "E": ("dr_grpo", (), ("dr_grpo.py", "args.max_response_tokens)", "(10 * args.max_response_tokens))")),
    "F": ("grpo", ("--kl-beta", "0.5"), ("grpo.py", "loss + args.kl_beta", "loss - args.kl_beta")),
    "G": ("grpo", (),
          ("common/transformers_engine.py",
           "or --lr is too high.\", code=1)\n",
           "or --lr is too high.\", code=1)\n"
           "            p, order = logp.exp().sort(-1, descending=True)\n"
           "            kept = torch.where(p.cumsum(-1) - p < 0.8, p, 0.0)\n"
           "            logp = torch.zeros_like(logp).scatter(1, order, kept / kept.sum(-1, keepdim=True)).log()\n")),
    "H": ("dr_grpo", (), None),
    "I": ("grpo", ("--num-minibatches", "8", "--update-epochs", "4"), ("grpo.py", GRPO_LOSS, INVERTED_LOSS)),
    "J": ("dr_grpo", (), ("dr_grpo.py", CONSTANT, ROW_MEAN)),
}  # fmt: skip


def seeds(letter: str) -> tuple[list[int], list[int]]:
    """Seeds of a run and of its healthy twin. No two runs share one, so equal first steps reveal nothing."""
    first = 1 + 2 * SEEDS * list(RUNS).index(letter)
    drawn = list(range(first, first + 2 * SEEDS))
    return drawn[:SEEDS], drawn[SEEDS:]


def run(name: str, script: str, flags: tuple[str, ...], seeds: list[int], change: tuple | None) -> None:
    """Save the logs of a script, one per seed, with one line changed if `change` is given. Needs its own process."""
    with tempfile.TemporaryDirectory() as work:
        for folder in ("common", "tools", "worlds"):
            shutil.copytree(ROOT / folder, Path(work) / folder)
        shutil.copy(ROOT / f"{script}.py", work)
        if change:
            file, line, wrong_line = change
            text = (Path(work) / file).read_text()
            assert line in text, f"{file} has no line {line!r}"
            (Path(work) / file).write_text(text.replace(line, wrong_line))
        os.chdir(work)
        sys.path.insert(0, work)
        for module in [m for m in sys.modules if m.split(".")[0] in ("common", "tools", "worlds")]:  # to use the copy's
            del sys.modules[module]
        for seed in seeds:
            sys.argv = [f"{script}.py", *FLAGS, *flags, "--seed", str(seed), "--run-dir", f"run{seed}"]
            with open(os.devnull, "w") as sys.stdout:
                runpy.run_path(f"{script}.py", run_name="__main__")
            sys.stdout = sys.__stdout__
        logs = [read_metrics(Path(work) / f"run{seed}")[1:] for seed in seeds]
        os.chdir(ROOT)
    logs = [[{k: float(f"{row[k]:.4g}") for k in ("step", *PANELS) if k in row} for row in log] for log in logs]
    (KEPT / f"{name}.json").write_text(json.dumps(logs))
    print(f"{name}: accuracy {[log[-1]['accuracy'] for log in logs]}", flush=True)


def main() -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    blocks = []
    for letter, (script, flags, change) in RUNS.items():
        mine, healthy = seeds(letter)
        blocks += [
            (f"{letter}-shown", script, flags, mine, change),
            (f"{letter}-healthy", script, flags, healthy, None),
        ]
    left = [block for block in blocks if not (KEPT / f"{block[0]}.json").exists()]
    with multiprocessing.get_context("fork").Pool(AT_A_TIME, maxtasksperchild=1) as processes:
        processes.starmap(run, left, chunksize=1)
    runs = {
        letter: {kind: json.loads((KEPT / f"{letter}-{kind}.json").read_text()) for kind in ("healthy", "shown")}
        for letter in RUNS
    }
    record = {"date": str(date.today()), "versions": package_versions(), "runs": runs}
    LOGS.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
