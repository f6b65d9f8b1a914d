"""Run the silent bugs, the runs without a bug and their healthy twins.

    python -m notebooks.exercises.make_bugs                  # the practice runs: bugs.json
    python -m notebooks.exercises.make_bugs --key SECRET     # a class's own; for make, grade and grade_class with --bugs

Two runs at a time; resumable, because runs/silent_bugs keeps finished runs. Each bug changes one line in a copy of the
repository. key.py says which run has which bug: a key draws bugs, letters and seeds. Neither file is in the handout.
"""

import json
import multiprocessing
import os
import random
import runpy
import shutil
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import common.transformers_engine  # loaded once, with the next one, for all forked runs
import common.verification.verifier  # noqa: F401
from common.cli import say
from common.folders import package_versions
from common.help import parse_args
from common.metrics import read_metrics
from notebooks.exercises.exercises import SIGNAL_LINE
from notebooks.exercises.key import KEPT, check_key, class_logs, plan
from notebooks.exercises.mistakes import CONSTANT, ROW_MEAN
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
AT_A_TIME = 2
SEEDS = 3  # of each run and of its healthy twin
# By bug: (script, flags beyond FLAGS for the run and its twin, (file, line, the line with the bug)).
SETTINGS = {
    "shaped-filter": (
        "dapo", ("--overlong-cache", "80"),
        ("dapo.py", SIGNAL_LINE,
         "(kept if (2 * row - 1 + overlong_penalty(torch.tensor([len(t) for t in group.tokens]), args)).std() > 0 "
         "else spare)")),
    "k1-in-loss": (
        "grpo", ("--kl-beta", "0.5", "--num-minibatches", "1"),
        ("grpo.py", "return torch.exp(ref_logp - logp) - (ref_logp - logp) - 1", "return logp - ref_logp")),
    "bf16-weights": ("grpo", ("--lr", "2e-5"), ("common/models.py", "dtype=torch.float32", "dtype=torch.bfloat16")),
    "scaled-loss": (
        "dr_grpo", (), ("dr_grpo.py", "args.max_response_tokens)", "(10 * args.max_response_tokens))")),
    "kl-sign": ("grpo", ("--kl-beta", "0.5"), ("grpo.py", "loss + args.kl_beta", "loss - args.kl_beta")),
    "top-p": ("grpo", (), ("common/stream.py", "self.engine.top_k, self.engine.top_p)", "self.engine.top_k, 0.8)")),
    "length-normalized": ("dr_grpo", (), ("dr_grpo.py", CONSTANT, ROW_MEAN)),
}  # fmt: skip


@dataclass
class Args:
    key: str | None = None
    """The key of a class; without it the practice runs are made."""


Block = tuple[str, str, tuple[str, ...], list[int], tuple[str, str, str] | None]


def seeds(name: str, blocks: int) -> list[list[int]]:
    """Seeds for each block of runs, drawn by name. No two runs share one, so equal first steps reveal nothing."""
    drawn = random.Random(f"{name}/seeds").sample(range(1 << 31), SEEDS * blocks)
    return [drawn[i : i + SEEDS] for i in range(0, len(drawn), SEEDS)]


def blocks(key: str | None) -> list[Block]:
    """Name, script, flags, seeds and change for each run and its healthy twin."""
    letters = plan(key)
    drawn = iter(seeds("None" if key is None else f"class {key}", 2 * len(letters)))  # a key may be "None"
    made: list[Block] = []
    for letter, (bug, settings) in letters.items():
        script, flags, change = SETTINGS[settings]
        made.append((f"{letter}-shown", script, flags, next(drawn), None if bug == "healthy" else change))
        made.append((f"{letter}-healthy", script, flags, next(drawn), None))
    return made


def run(path: Path, script: str, flags: tuple[str, ...], seeds: list[int], change: tuple[str, str, str] | None) -> None:
    """Save to a file the logs of a script, one per seed, with one line changed if `change` is given. Needs its own process."""
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
        for module in [m for m in sys.modules if m.split(".")[0] in ("common", "tools", "worlds")]:  # import the copy's
            del sys.modules[module]
        for seed in seeds:
            sys.argv = [f"{script}.py", *FLAGS, *flags, "--seed", str(seed), "--run-dir", f"run{seed}"]
            with open(os.devnull, "w") as sys.stdout:
                runpy.run_path(f"{script}.py", run_name="__main__")
            sys.stdout = sys.__stdout__
        logs = [read_metrics(Path(work) / f"run{seed}")[1:] for seed in seeds]
        os.chdir(ROOT)
    logs = [[{k: float(f"{row[k]:.4g}") for k in ("step", *PANELS) if k in row} for row in log] for log in logs]
    path.write_text(json.dumps(logs))
    print(f"{path.stem}: accuracy {[log[-1]['accuracy'] for log in logs]}", flush=True)


def run_all(folder: Path, asked: list[Block]) -> dict[str, list[list[dict[str, float]]]]:
    """Each block's logs, one per seed. Finished blocks are read from the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    left = [(folder / f"{name}.json", *more) for name, *more in asked if not (folder / f"{name}.json").exists()]
    with multiprocessing.get_context("fork").Pool(AT_A_TIME, maxtasksperchild=1) as processes:
        processes.starmap(run, left, chunksize=1)
    return {name: json.loads((folder / f"{name}.json").read_text()) for name, *_ in asked}


def main(args: Args) -> None:
    check_key(args.key)
    path = LOGS if args.key is None else class_logs(args.key)
    folder = KEPT / "practice" if args.key is None else path.parent
    logs = run_all(folder, blocks(args.key))
    runs = {letter: {kind: logs[f"{letter}-{kind}"] for kind in ("healthy", "shown")} for letter in plan(args.key)}
    made = {"date": str(date.today()), "versions": package_versions(), "runs": runs}
    path.write_text(json.dumps(made) + "\n")
    say(f"{path}: {len(runs)} runs")


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
