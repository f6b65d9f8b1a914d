"""Train the small model with your functions for 20 steps and compare the run with the reference.

    python train.py grpo                 # about a minute on two cores; other flags are passed on: --seed 2
    python train.py grpo --wrong         # also with functions that are not correct, to see what a mistake does
    python train.py loop                 # with the loop that you wrote; `changed` for the one that you changed

A function that methods share comes from the file that asks for it. If a function is not correct yet, the command
names it and does not train, unless you add --wrong. A function that crashes or returns another shape cannot be trained.
Needs the packages in requirements.txt; the model is in this folder.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FLAGS = ["--steps", "20", "--engine", "transformers", "--eval-every", "10"]  # as in the reference, except for the steps
PANELS = {
    "eval/avg": "held-out accuracy, avg@n",
    "length": "response length, tokens",
    "entropy": "entropy, nats per token",
}


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """The rows that a run logged, one per step."""
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [{name: row[name] for name in ("step", *PANELS) if name in row} for row in lines]


def plot(label: str, mine: list[dict[str, Any]], reference: list[list[dict[str, Any]]], path: Path) -> None:
    """Plot a run's curves and the reference's to a file."""
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(1, len(PANELS), figsize=(12, 3.2), layout="constrained")
    runs = [
        (log, "#888888", "--", "" if i else f"reference, {len(reference)} seeds") for i, log in enumerate(reference)
    ]
    for axes, (metric, title) in zip(grid, PANELS.items(), strict=True):
        for log, color, line, name in [*runs, (mine, "#0072B2", "-", label)]:
            points = [(row["step"], row[metric]) for row in log if metric in row]
            axes.plot(*zip(*points, strict=True), color=color, linestyle=line, label=name or None)
        axes.set(xlabel="step", ylabel=title)
        axes.grid(alpha=0.3)
    grid[0].legend()
    figure.savefig(path, dpi=120)


def method(script: str) -> str:
    """The method whose runs are the reference."""
    if script == "changed":
        from loop import CHANGE

        return CHANGE
    return {"loop": "grpo"}.get(script, script)


def main(script: str, flags: list[str]) -> None:
    from test_exercises import check, fits

    loop = HERE / "loops" / f"{script}.py"
    if not loop.exists():
        methods = ", ".join(sorted(path.stem for path in loop.parent.glob("*.py")))
        sys.exit(f"error: {script} is not a method: choose one of {methods}.")
    wrong, stuck = [], []
    for name in map(".".join, re.findall(r"^from (\w+) import (\w+)  # yours$", loop.read_text(), re.M)):
        if problem := check(name):
            print(f"{name.replace('.', '.py, ')}: {problem}")
            wrong.append(name)
            stuck += [name] * (not fits(name))
    if stuck and "--wrong" in flags:
        sys.exit(f"error: {', '.join(stuck)} cannot be trained before each returns numbers in the shape asked for.")
    if wrong and "--wrong" not in flags:
        sys.exit(
            f"error: {script} uses these functions: correct them first, or add --wrong to see what the mistake does; "
            "nothing was trained."
        )
    flags = [flag for flag in flags if flag != "--wrong"]
    run_dir = HERE / "runs" / script
    number = 2
    while run_dir.exists():
        run_dir, number = HERE / "runs" / f"{script}-{number}", number + 1
    command = [sys.executable, "-m", f"loops.{script}", *FLAGS, *flags, "--run-dir", str(run_dir)]
    if code := subprocess.run(command, cwd=HERE).returncode:
        sys.exit(code)
    mine, reference = rows(run_dir), json.loads((HERE / "reference.json").read_text())[method(script)]
    picture = run_dir / "beside_the_reference.png"
    label = f"{script} with your functions" + (f", wrong: {', '.join(wrong)}" if wrong else "")
    plot(label, mine, reference, picture)
    last = [[row["eval/avg"] for row in log if "eval/avg" in row][-1] for log in (mine, *reference)]
    others = ", ".join(f"{accuracy:.3f}" for accuracy in last[1:])
    print(f"held-out accuracy at the end: {last[0]:.3f}; the reference's at step 20: {others}; {picture}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("error: name a method: python train.py grpo")
    main(sys.argv[1], sys.argv[2:])
