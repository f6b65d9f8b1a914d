"""What a run shows: lines on the terminal, and files of samples to read afterwards."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common.cli import printable
from common.distributed import rank
from common.records import Sample

from tqdm import tqdm

SHOWN_SAMPLES = 4  # per evaluation
WIDTH = 120  # of a step's line, if stdout is not a terminal
# Columns of a step's line: the heading, the format of its number, and whether it stays on a narrow terminal.
COLUMNS = {
    "step": ("step", "{}", 0), "accuracy": ("accuracy", "{:.3f}", 0), "loss": ("loss", "{:.3f}", 0),
    "reward": ("reward", "{:.3f}", 1), "length": ("length", "{:.1f}", 2), "truncated": ("cut off", "{:.2f}", 6),
    "zero_std_groups": ("no signal", "{:.2f}", 4), "entropy": ("entropy", "{:.3f}", 7), "kl": ("KL", "{:.4f}", 8),
    "clipped": ("clipped", "{:.3f}", 9), "grad_norm": ("gradient", "{:.2f}", 3), "speed": ("tokens/s", "{:.0f}", 10),
    "left": ("left", "{}", 5),
}  # fmt: skip


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def step_lines(
    step: int, steps: int, metrics: dict[str, Any], seconds: float, left: float, width: int
) -> tuple[str, str]:
    """The headings and the numbers of a step. If `width` is too small, the least important are left out.

    `left` is the time until the last step, in seconds; evaluations are not counted. Each `reward/NAME` has a column.
    """
    shown = metrics | {"step": f"{step:{len(str(steps))}}/{steps}", "left": duration(left)}
    shown["speed"] = metrics["response_tokens"] / seconds
    if "loss" in metrics and "accuracy" in metrics:  # a supervised step has no accuracy
        del shown["loss"]
    if metrics.get("reward") == metrics.get("accuracy"):
        shown.pop("reward", None)
    if {"clip_pos", "clip_neg"} & metrics.keys():
        shown["clipped"] = metrics.get("clip_pos", 0) + metrics.get("clip_neg", 0)
    own = {name: (name.removeprefix("reward/"), "{:.3f}", 1) for name in shown if re.fullmatch(r"reward/\w+", name)}
    columns = {**dict(list(COLUMNS.items())[:4]), **own, **COLUMNS}
    names = [name for name in columns if shown.get(name) is not None]
    while True:
        cells = [(columns[name][0], columns[name][1].format(shown[name])) for name in names]
        widths = [max(6, *map(len, cell)) for cell in cells]
        if sum(widths) + 2 * (len(widths) - 1) <= width or len(names) == 2:
            break
        names.remove(max(names, key=lambda name: columns[name][2]))
    headings, line = ("  ".join(cell[row].rjust(w) for cell, w in zip(cells, widths, strict=True)) for row in (0, 1))
    return headings, line


def silence() -> None:
    """Discard everything that is printed from now on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Terminal:
    """Lines above a progress bar. Once stdout is closed, `on_close` is called and nothing more is shown."""

    def __init__(self, on_close: Callable[[], None]) -> None:
        self.on_close = on_close
        self.bar: tqdm | None = None
        self.headings = ""  # of the lines above, until something else is written
        self.seconds: list[float] = []  # of each step
        self.stdout = sys.stdout
        if hasattr(self.stdout, "reconfigure"):
            self.errors = self.stdout.errors
            self.stdout.reconfigure(errors="replace")  # an ASCII terminal shows ? for →

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        if hasattr(self.stdout, "reconfigure"):
            self.stdout.reconfigure(errors=self.errors)

    def write_line(self, text: str) -> None:
        self.headings = ""
        if rank() > 0:
            return
        try:
            tqdm.write(printable(text, keep="\n\t"))
            sys.stdout.flush()
        except OSError:  # a closed pipe, a terminal that is gone
            silence()
            self.on_close()

    def print_first_sample(self, sample: Sample) -> None:
        """The first prompt, response and reward in full: a wrong template or stop token shows here."""
        problem, response, reward = sample
        self.write_line(
            f"--- first prompt ---\n{problem.prompt}\n--- response ---\n{response}\n"
            f"--- answer {problem.answer}: reward {reward:g} ---"
        )

    def print_step(self, step: int, steps: int, metrics: dict[str, Any], seconds: float) -> None:
        if self.bar is None and sys.stderr.isatty() and rank() == 0:
            self.bar = tqdm(total=steps, initial=step - 1, unit="step", dynamic_ncols=True)
        self.seconds.append(seconds)
        left = (steps - step) * sum(self.seconds) / len(self.seconds)
        width = shutil.get_terminal_size().columns if self.stdout.isatty() else WIDTH
        headings, line = step_lines(step, steps, metrics, seconds, left, width)
        self.write_line(line if headings == self.headings else f"{headings}\n{line}")
        self.headings = headings
        if self.bar is not None:
            self.bar.update()

    def print_evaluation(self, step: int, metrics: dict[str, Any]) -> None:
        n = metrics["eval/n"]
        each = [f", {name.removeprefix('eval/avg/')} {v:.3f}" for name, v in metrics.items() if "eval/avg/" in name]
        self.write_line(
            f"step {step:4d}  held out: avg@{n} {metrics['eval/avg']:.3f} ± {metrics['eval/standard_error']:.3f}, "
            f"greedy {metrics['eval/greedy']:.3f}, pass@{n} {metrics[f'eval/pass@{n}']:.3f}"
            + (f" (avg@{n}{''.join(each)[1:]})" if each else "")
        )


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """Prompts, responses and rewards as Markdown."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(as_markdown(samples), encoding="utf-8")


def as_markdown(samples: Sequence[Sample]) -> str:
    """Prompts, responses and rewards, in fences that their content cannot close."""

    def fenced(text: str) -> str:
        shown = printable(text, keep="\n\t")
        longest = max((len(run) for run in re.findall("`+", text)), default=0)
        fence = "`" * max(3, longest + 1)
        return f"{fence}text\n{shown}\n{fence}\n"

    return "\n".join(
        f"**Prompt**\n{fenced(problem.prompt)}**Response**, reward {reward:g}\n{fenced(response)}"
        f"**Answer**\n{fenced(str(problem.answer))}"
        for problem, response, reward in samples
    )
