"""Sends metrics and samples to the service that --track names."""

import importlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.cli import fail, first_line
from common.folders import named, write_whole
from common.records import Sample
from common.settings import Settings
from common.terminal import as_markdown

PACKAGES = {"wandb": "wandb", "tensorboard": "torch.utils.tensorboard"}
WANDB_ID = "wandb-id"  # file in the run folder, so that a resumed run continues the same W&B run


class Tracker:
    """Sends what a run logs to Weights & Biases or TensorBoard, or nowhere."""

    def __init__(self, args: Settings) -> None:
        """Imports the package and logs in, so that problems show before anything expensive starts."""
        self.args, self.writer = args, None
        try:
            self.package = importlib.import_module(PACKAGES[args.track]) if args.track != "none" else None
            if args.track == "wandb":
                self.package.login()  # asks for the key only on a terminal; offline it does nothing
        except ImportError:
            fail(f"--track {args.track}: the package is not installed: pip install {args.track}.")
        except Exception as error:  # wandb raises its own
            fail(f"--track {args.track}: {first_line(error)} Run `wandb login`, or set WANDB_MODE=offline.")

    def log(self, run_dir: Path, step: int, metrics: dict[str, Any], samples: Sequence[Sample]) -> None:
        """The first call opens the writer."""
        numbers = {name: value for name, value in metrics.items() if value is not None}
        if self.args.track == "wandb":
            if self.writer is None:
                self.writer = self.start_wandb(run_dir)
            if samples:
                rows = [[problem.prompt, text, str(problem.answer), reward] for problem, text, reward in samples]
                numbers["samples"] = self.package.Table(["prompt", "response", "answer", "reward"], rows)
            self.writer.log(numbers, step=step)
        elif self.args.track == "tensorboard":
            if self.writer is None:
                self.writer = self.package.SummaryWriter(str(run_dir))
            for name, value in numbers.items():
                self.writer.add_scalar(name, value, step)
            if samples:
                self.writer.add_text("samples", as_markdown(samples), step)
            self.writer.flush()

    def start_wandb(self, run_dir: Path) -> Any:
        """The run of this folder, or a new one."""
        if not (file := run_dir / WANDB_ID).exists():
            write_whole(file, secrets.token_hex(4))
        where = {"project": "rl-for-reasoning", "name": run_dir.name, "dir": run_dir}
        return self.package.init(**where, id=file.read_text(), resume="allow", config=named(self.args))

    def close(self) -> None:
        if self.writer is not None:
            self.writer.finish() if self.args.track == "wandb" else self.writer.close()
