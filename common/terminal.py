"""What a run shows: lines on the terminal, and files of samples to read afterwards."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.cli import printable
from common.distributed import rank
from common.records import Sample

from tqdm import tqdm

SHOWN_SAMPLES = 4  # in each file


def silence() -> None:
    """Discard everything that is printed from now on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Terminal:
    """Lines above a progress bar. Once stdout is closed, `on_close` is called and nothing more is shown."""

    def __init__(self, on_close: Callable[[], None]) -> None:
        self.on_close = on_close
        self.bar: tqdm | None = None
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
        clipped = metrics.get("clip_pos", 0) + metrics.get("clip_neg", 0)
        result = "accuracy" if "accuracy" in metrics else "loss"  # of supervised steps
        self.write_line(
            f"step {step:4d}  {result} {metrics[result]:.3f}  length {metrics['length']:5.1f}  "
            f"entropy {metrics['entropy']:.3f}  clipped {clipped:.3f}  "
            f"gradient {metrics['grad_norm']:.2f}  {seconds:.2f} s"
        )
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


def write_samples(path: Path, samples: list[Sample]) -> None:
    """Prompts, responses and rewards as Markdown, in fences that their content cannot close."""

    def fenced(text: str) -> str:
        shown = printable(text, keep="\n\t")
        longest = max((len(run) for run in re.findall("`+", text)), default=0)
        fence = "`" * max(3, longest + 1)
        return f"{fence}text\n{shown}\n{fence}\n"

    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "\n".join(
            f"**Prompt**\n{fenced(problem.prompt)}**Response**, reward {reward:g}\n{fenced(response)}"
            f"**Answer**\n{fenced(str(problem.answer))}"
            for problem, response, reward in samples[:SHOWN_SAMPLES]
        ),
        encoding="utf-8",
    )
