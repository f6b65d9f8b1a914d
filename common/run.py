"""Everything about a run that does not decide what is learned: its folder, log, clock, and its end."""

import errno
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from common import distributed, folders
from common.checkpoints import checkpoints, drop_old, load_newest, save_checkpoint
from common.cli import fail, first_line, flag, lacks_memory
from common.distributed import any_process, gather, local, local_world_size, rank, whole, world_size
from common.engines import Engine
from common.evaluation import evaluate
from common.folders import remove_if_empty, write_whole
from common.lora import Adapters, is_adapted, whole_weights
from tools.plots import draw_curves, read_metrics
from common.records import Problem
from tools.scripts import command
from common.settings import Settings, dataset_names
from common.terminal import Terminal, silence, write_samples
from common.trackers import Tracker
from common.verification.verifier import Verifier

import numpy as np
import torch
from torch import Tensor

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REPEATED = 1.0  # seconds after which a second Ctrl-C is meant: torchrun repeats the first one to its processes
UNREADABLE = (errno.EACCES, errno.ENAMETOOLONG)  # what a setting names
PEER_IS_GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out")
COLLAPSED = 0.5  # a final accuracy below this share of the best one deserves a remark
MEMORY_HELP = (
    "a lower --micro-batch-tokens or --gradient-checkpointing helps in training, fewer --prompts-per-step or "
    "--max-response-tokens in generation, and with vLLM on a GPU a lower --gpu-memory-utilization."
)
Closable = TypeVar("Closable")


def seed_step(seed: int, step: int) -> None:
    """Seed every generator from the run's seed and the step.

    A step's randomness depends on nothing that came before: a resumed run needs no stored state.
    """
    words = np.random.SeedSequence(seed, spawn_key=(step,)).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(words[1])
    torch.manual_seed(int(words[2]))


class Run:
    """One run and its folder, as a context: what it opened is closed and what it changed is put back at the end."""

    MAY_CHANGE = ("steps", "eval_every", "eval_samples", "save_every")  # by flags beside --resume

    def __init__(self, args: Settings, script: str) -> None:
        self.script = Path(script).resolve()
        self.method = self.script.stem
        self.given = args
        self.changed: list[str] = []  # settings that differ from those of the run to resume
        self.seconds: dict[str, float] = defaultdict(float)  # of each stage of the step
        self.gpu_memory: dict[str, float] = defaultdict(float)  # GiB, the peak of each stage
        self.state: dict[str, Any] = {}  # of the checkpoint to go on from
        self.evaluations: dict[int, dict[str, Any]] = {}  # held-out metrics by step
        self.asked_to_stop = 0.0  # when this process was
        self.interrupted = False  # whether any process was, as all agreed after the last step
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        self.started = time.perf_counter()
        try:
            self.args = (self.given if self.given.resume is None else self.saved_settings()).checked()
            if torch.cuda.is_available() and local_world_size() > (count := torch.cuda.device_count()):
                fail(f"--nproc-per-node {local_world_size()}: this machine has {count} GPUs.")
            if distributed.start():  # not by a run that this one is a part of
                self.closing(distributed)
            self.take_signals()
            self.terminal = self.closing(Terminal(self.stop_soon))
            if rank() == 0:
                self.tracker = self.closing(Tracker(self.args))
            self.dir = gather(self.open_folder() if rank() == 0 else None)[0]
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is not None:
                self.report_crash(error)
            elif rank() == 0:
                self.summarize()
        except SystemExit as end:
            error = end
            raise
        finally:
            if error is not None and world_size() > 1:
                if rank() == 0 and hasattr(self, "dir"):
                    remove_if_empty(self.dir)
                leave(error)
            self.stack.close()

    def closing(self, thing: Closable) -> Closable:
        """Close `thing` at the end of the run, however it ends."""
        self.stack.callback(thing.close)
        return thing

    # Folder

    def open_folder(self) -> Path:
        """The run's folder, which no other run may use meanwhile; a new one disappears again if nothing is written."""
        return folders.open_folder(self.args, f"{self.method}-seed{self.args.seed}", self.stack)

    def write_config(self) -> None:
        folders.write_config(self.dir, self.method, self.args)

    def saved_settings(self) -> Settings:
        """The settings of the run to resume, which flags beside --resume may extend and otherwise not contradict."""
        saved, self.changed = folders.saved_settings(self.given, self.method, self.MAY_CHANGE)
        if "steps" in self.changed:
            self.check_extension(saved)
        return saved

    def check_extension(self, args: Settings) -> None:
        """End the program where so many steps cannot be what a run of that length from its start would have come to."""
        for last in checkpoints(args.resume)[-1:]:
            done = int(last.name.removeprefix("checkpoint-"))
            if args.steps < done:
                fail(f"--steps {args.steps}: {args.resume} has done {done} steps already.")
        for name, harmless in (("lr_schedule", "constant"), ("value_pretraining", 0.0)):
            if (value := getattr(args, name, harmless)) != harmless:
                fail(
                    f"--steps: with {flag(name)} {value} the steps that are done depended on how many there would be, "
                    f"so this run cannot be extended: begin a new one, or one from its weights by --model."
                )

    # State

    def restore(self, model: Any, tokenizer: Any, optimizer: torch.optim.Optimizer, **objects: Any) -> int:
        """Load the checkpoint to go on from, if there is one; the number of steps done.

        These are what every later checkpoint is made of; the `objects` have a `state_dict` and a `load_state_dict`.
        """
        self.model, self.tokenizer, self.objects = model, tokenizer, {"optimizer": optimizer, **objects}
        if is_adapted(model):
            self.objects["adapters"] = Adapters(model)
        seed_step(self.args.seed, 0)
        if rank() == 0 and self.changed:
            folders.change_config(self.dir, self.args)
        if rank() == 0 and not (self.dir / "config.json").exists():
            self.write_config()
        if self.args.resume is None:
            return 0
        self.state = load_newest(self.dir, model, self.objects) or {}
        step = self.state.get("step", -1)
        found = f"resuming {self.dir} after step {step}"
        print(
            found if step >= 0 else f"{self.dir} holds no whole checkpoint: the run starts from the beginning.",
            flush=True,
        )
        if rank() == 0:
            self.cut_logs(step)
        self.evaluations = gather(self.evaluations)[0]
        return max(0, step)

    def cut_logs(self, step: int) -> None:
        """Drop what was logged after `step`: those steps are run again."""
        metrics = self.dir / "metrics.jsonl"
        rows = [row for row in read_metrics(self.dir) if row["step"] <= step] if metrics.exists() else []
        write_whole(metrics, "".join(json.dumps(row) + "\n" for row in rows))
        for path in (self.dir / "samples").glob("step-*.md"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()
        self.evaluations = {row["step"]: row for row in rows if "eval/avg" in row}

    def saved(self, name: str, default: Any) -> Any:
        """A value that the method put into the checkpoint to go on from."""
        return self.state[name] if self.state else default

    def save(self, step: int, name: str = "", **extra: Any) -> Path:
        """Write a checkpoint with all that the run needs to go on, and values of the method's own.

        One with a name is a model to start from, without what it takes to go on.
        """
        folder = self.dir / (name or f"checkpoint-{step:06d}")
        state, objects = (None, {}) if name else ({"step": step, **extra}, self.objects)
        sharded = self.args.sharded_checkpoints and not name
        try:
            save_checkpoint(folder, self.model, self.tokenizer, state, objects, sharded)
        except Exception as error:  # safetensors, tokenizers and torch have each their own
            # torch names neither the disk nor the file where there is no room left for it
            reason = "the disk is full" if "enforce fail" in str(error) else first_line(error)
            fail(f"the checkpoint of step {step} cannot be written: {reason}. {self.resume_hint()}", code=1)
        drop_old(self.dir)
        return folder

    def resume_hint(self) -> str:
        """How to go on after the run has ended before its time."""
        saved = checkpoints(self.dir) if hasattr(self, "dir") else []
        if not saved:
            return "There is no checkpoint yet."
        return f"All up to {saved[-1].name} is safe: {self.resume_command()}"

    def resume_command(self) -> str:
        nodes = world_size() // local_world_size()
        launcher = f"torchrun --nproc-per-node {local_world_size()}" if world_size() > 1 else "python"
        launcher += f" --nnodes {nodes} ..." if nodes > 1 else ""
        part = (self.dir.parent / "config.json").exists()  # of a run of several stages, which goes on as a whole
        return f"{launcher} {' '.join(command(self.script))} --resume {self.dir.parent if part else self.dir}"

    def require_finite(self, step: int, **values: Tensor | float) -> None:
        """End the run, with the weights saved as they are, before a NaN or an infinity can reach them."""
        broken = [name for name, value in values.items() if not whole(torch.as_tensor(value)).isfinite().all()]
        broken = list(dict.fromkeys(name for part in gather(broken) for name in part))
        if broken:
            folder = self.save(step, name=f"nonfinite-step-{step:06d}")
            fail(
                f"step {step}: not finite: {', '.join(broken)}. The update was not applied; the weights before it "
                f"are in {folder}. Start from them with a lower --lr or --max-grad-norm: --model {folder}",
                code=1,
            )

    def require_finite_weights(self, step: int) -> None:
        """End the run where the updates of a step broke the weights: the last checkpoint stays the newest."""
        broken = [name for name, weight in self.model.named_parameters() if not local(weight).isfinite().all()]
        broken = [name for part in gather(broken) for name in part]
        if broken:
            fail(
                f"step {step}: its updates left weights that are not finite ({broken[0]}); they are not saved. Start "
                f"from an earlier checkpoint with a lower --lr or --max-grad-norm. {self.resume_hint()}",
                code=1,
            )

    # Log

    def write_line(self, text: str) -> None:
        self.terminal.write_line(text)

    @contextmanager
    def clock(self, stage: str) -> Iterator[None]:
        """Add the time spent inside to the seconds of a stage; on a GPU, keep its peak of memory too."""
        start = time.perf_counter()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        yield
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        if torch.cuda.is_available():
            self.gpu_memory[stage] = max(self.gpu_memory[stage], torch.cuda.max_memory_allocated() / 2**30)
        self.seconds[stage] += time.perf_counter() - start

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        """Record a step: a line in the file and one on the terminal."""
        self.require_finite_weights(step)
        self.interrupted = any_process(self.asked_to_stop > 0)
        numbers = metrics | {f"seconds/{stage}": seconds for stage, seconds in self.seconds.items()}
        numbers |= {f"gpu_memory/{stage}": peak for stage, peak in self.gpu_memory.items()}  # GiB
        tokens = metrics["response_tokens"]
        # Groups that were thrown away, or kept from a step before, are not in these tokens.
        if "generate" in self.seconds and "sampled_prompts" not in metrics:
            numbers["tokens_per_second/generate"] = tokens / self.seconds["generate"]
        numbers["tokens_per_second/train"] = tokens * self.args.update_epochs / self.seconds["train"]
        self.terminal.print_step(step, self.args.steps, metrics, sum(self.seconds.values()))
        self.seconds.clear()
        self.gpu_memory.clear()
        self.write_metrics(step, numbers)

    def evaluate(self, step: int, engine: Engine, verifier: Verifier, problems: list[Problem]) -> None:
        """Held-out evaluation where it is due: before the first step, after the last, and every so many between.

        It comes after the checkpoint: a run that ends here loses nothing, and makes up for it when it goes on.
        """
        args, last = self.args, step == self.args.steps
        due = step == 0 or last or (args.eval_every > 0 and step % args.eval_every == 0)
        n = args.eval_samples if step == 0 or last else max(1, args.eval_samples // 4)
        if not due or self.interrupted or self.evaluations.get(step, {"eval/n": 0})["eval/n"] >= n:
            return
        with self.clock("evaluate"):
            engine.load_weights(whole_weights(self.model))
            metrics, samples = evaluate(engine, verifier, problems, n, args)
        if step == 0:
            self.terminal.print_first_sample(samples[0])
        self.terminal.print_evaluation(step, metrics)
        if rank() == 0:
            write_samples(self.dir / "samples" / f"step-{step:06d}.md", samples)
        best = max((row["eval/avg"] for row in self.evaluations.values()), default=0.0)
        if step > 0 and metrics["eval/avg"] > best:
            save_checkpoint(self.dir / "best", self.model, self.tokenizer, None, {}, sharded=False)
        self.evaluations[step] = metrics
        resources = {"seconds/evaluate": self.seconds.pop("evaluate")}
        if torch.cuda.is_available():
            resources["gpu_memory/evaluate"] = self.gpu_memory.pop("evaluate")
        self.write_metrics(step, metrics | resources)

    def write_metrics(self, step: int, numbers: dict[str, Any]) -> None:
        if rank() > 0:
            return
        with (self.dir / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **numbers}) + "\n")
        self.tracker.log(self.dir, step, numbers)

    def due(self, step: int, every: int) -> bool:
        """Whether something is to be done after this step: every so many, at the end, and when interrupted."""
        return step == self.args.steps or self.interrupted or (every > 0 and step % every == 0)

    # The end

    def take_signals(self) -> None:
        """Ctrl-C, a request to end, and a closed terminal end the run after the step under way."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
                    self.stack.callback(signal.signal, number, signal.signal(number, self.interrupt))

    def interrupt(self, number: int, _: Any) -> None:
        if distributed.another_failed():  # torchrun ends the rest
            os._exit(1)
        if not self.asked_to_stop:
            self.stop_soon()
            if rank() == 0:
                with suppress(OSError):  # not print, which may be what was interrupted
                    os.write(2, b"\ninterrupted: finishing this step and saving (once more Ctrl-C stops at once)\n")
        elif world_size() == 1 or time.monotonic() - self.asked_to_stop > REPEATED:
            raise KeyboardInterrupt

    def stop_soon(self) -> None:
        self.asked_to_stop = self.asked_to_stop or time.monotonic()

    def report_crash(self, error: BaseException) -> None:
        """One sentence where memory or disk has run out or somebody stopped the run; a defect keeps its traceback."""
        sentence, code = None, 1
        if isinstance(error, KeyboardInterrupt):
            sentence, code = f"stopped. {self.resume_hint()}", 130
        elif isinstance(error, BrokenPipeError):
            silence()
            sentence = f"nobody reads the output any more. {self.resume_hint()}"
        elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            sentence = f"the disk is full or a quota is used up: {error}. {self.resume_hint()}"
        elif isinstance(error, OSError) and error.errno in UNREADABLE and not hasattr(self, "model"):
            sentence, code = f"{error.filename}: {error.strerror}.", 2
        elif isinstance(error, OSError) and error.filename and self.dir in Path(error.filename).parents:
            sentence = f"the run folder {self.dir} was moved, deleted or made read-only: {error.strerror}."
        elif lacks_memory(error):
            sentence = f"not enough memory: {MEMORY_HELP} {self.resume_hint()}"
        elif world_size() > 1 and any(words in str(error) for words in PEER_IS_GONE):
            sentence = f"another process has ended without a word, perhaps for lack of memory. {self.resume_hint()}"
        if sentence:
            fail(sentence, code)

    def summarize(self) -> None:
        """Draw the curves and print where everything lies."""
        args, data = self.args, " and ".join(dataset_names(self.args))
        draw_curves(self.dir, f"{self.script.name}, {args.model} on {data}, seed {args.seed}")
        minutes, seconds = divmod(round(time.perf_counter() - self.started), 60)
        lines = [f"time                      {minutes} min {seconds} s", f"run folder                {self.dir}"]
        if self.evaluations:
            before, after = self.evaluations[0], self.evaluations[max(self.evaluations)]
            best = max(self.evaluations, key=lambda step: self.evaluations[step]["eval/avg"])
            lines.insert(0, f"greedy accuracy           {before['eval/greedy']:.3f} → {after['eval/greedy']:.3f}")
            lines.insert(
                0,
                f"held-out accuracy         {before['eval/avg']:.3f} → {after['eval/avg']:.3f} "
                f"± {after['eval/standard_error']:.3f} (avg@{before['eval/n']} → avg@{after['eval/n']})",
            )
            accuracy = self.evaluations[best]["eval/avg"]
            if after["eval/avg"] < COLLAPSED * accuracy:
                where = f": those weights are in {self.dir / 'best'}" if best else ", before training"
                lines.append(f"note: accuracy has collapsed; it was {accuracy:.3f} at step {best}{where}")
        lines += [f"checkpoint                {folder}" for folder in checkpoints(self.dir)[-1:]]
        if self.interrupted:
            lines.append(f"to go on                  {self.resume_command()}")
        self.terminal.write_line("\n" + "\n".join(lines))


def leave(error: BaseException) -> None:
    """End this process at once: others may wait for it, or it for them, in its last hours."""
    if not isinstance(error, SystemExit):
        if distributed.speaks():
            traceback.print_exception(error)
        error = SystemExit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(error.code if isinstance(error.code, int) else 1)
