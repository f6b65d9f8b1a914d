"""The process of `--overlap`, which generates while the learner trains, and the learner's side of it.

New weights are in shared memory, one version at a time: the learner writes the next one when the generator has taken
the last. Prompts and groups are messages. The learner waits only for a full batch, the generator only for a prompt. If
the generator is killed or stopped, the learner ends within a minute, with all earlier steps saved. If the learner is
killed, the generator ends; if it is stopped, the generator waits for it.
"""

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from common.cli import fail
from common.distributed import world_size
from common.ending import resume_hint
from common.engines import Weights, make_engine
from common.folders import ROOT
from common.lora import whole_weights
from common.models import load_model
from common.records import Problem
from common.run import Run
from recipes.asynchronous import Group, Prompt, Worker
from recipes.channel import Channel, pair

import torch

SHARED_MEMORY = Path("/dev/shm")
SILENT_SECONDS = 60.0  # a process that sends nothing for this long counts as stopped
Shapes = list[tuple[str, torch.Size]]


class SharedWeights:
    """A model's weights in an unnamed file, which disappears when both processes have ended."""

    def __init__(self, shapes: Shapes, descriptor: int) -> None:
        self.shapes = shapes
        count = sum(shape.numel() for _, shape in shapes)
        self.memory = torch.from_file(f"/dev/fd/{descriptor}", shared=True, size=count)  # (weights,)

    def read(self) -> Weights:
        parts = self.memory.split([shape.numel() for _, shape in self.shapes])
        return [(name, part.view(shape)) for (name, shape), part in zip(self.shapes, parts, strict=True)]

    def write(self, weights: Weights) -> None:
        for (_, mine), (_, weight) in zip(self.read(), weights, strict=True):
            mine.copy_(weight.detach())


def work(
    channel: Channel,
    args: dict[str, Any],
    threads: int,
    longest: Problem,
    shapes: Shapes,
    descriptor: int,
    interrupt: tuple[str, str] | None,
) -> None:
    """The generator's process, until the learner ends."""
    torch.set_num_threads(threads)
    settings = SimpleNamespace(**args)
    try:
        model, tokenizer = load_model(settings)
        model.requires_grad_(False)  # so no gradients take memory
        engine = make_engine(settings, model, tokenizer, [longest])
        function = getattr(importlib.import_module(interrupt[0]), interrupt[1]) if interrupt else None
        worker = Worker(engine, tokenizer, settings, function)
        generate(channel, worker, SharedWeights(shapes, descriptor))
    except (EOFError, ConnectionError):
        raise
    except BaseException as error:  # the learner ends the run
        error.add_note(f"in the generator's process:\n{traceback.format_exc()}")
        channel.send(("error", error))
        while True:
            channel.receive(None)  # until the learner has ended


def generate(channel: Channel, worker: Worker, shared: SharedWeights) -> None:
    """Take messages between two tokens, and send finished groups; it waits only if nothing is left to sample."""
    busy = 0.0  # seconds
    while True:
        start, groups = time.perf_counter(), []
        if channel.connection.poll(0 if worker.has_work else None):
            kind, value = channel.receive(None) or (None, None)
            start = time.perf_counter()
            if kind == "submit":
                worker.submit(value)
            elif kind == "load":
                groups = [] if worker.args.in_flight_updates else worker.finish()
                worker.load(value, shared.read())
                channel.send(("loaded", value))
        else:
            groups = worker.step()
        busy += time.perf_counter() - start
        if groups:
            channel.send(("groups", (groups, busy)))


class Remote:
    """Like `Worker`, but in another process, which it starts."""

    def __init__(self, run: Run, model: Any, train: list[Problem], interrupt: Callable[..., Any] | None) -> None:
        self.check()
        self.run, self.loaded, self.published, self.groups = run, -1, -1, []
        self.first: int | None = None  # version of the weights
        self.busy, self.since = 0.0, (0.0, time.perf_counter())  # seconds
        self.threads = torch.get_num_threads()
        if not torch.accelerator.is_available():
            torch.set_num_threads(max(1, self.threads // 2))  # the generator has the others
        shapes = [(name, weight.shape) for name, weight in whole_weights(model)]
        self.file = self.weights_file(4 * sum(shape.numel() for _, shape in shapes))
        self.shared = SharedWeights(shapes, self.file.fileno())
        mine, other = pair()
        silent = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)"  # Ctrl-C ends it without a traceback
        command = f"{silent}; from recipes.channel import main; main({other.fileno()})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", command],
            pass_fds=(other.fileno(), self.file.fileno()),
            process_group=0,  # Ctrl-C does not reach it: the learner decides what that does
            stdout=subprocess.DEVNULL,
            env=environment(),
        )
        other.close()  # so that this end notices when the process ends
        self.channel = Channel(mine)
        args = {name: value for name, value in vars(run.args).items() if name != "reward"}
        longest = max(train, key=lambda problem: len(problem.prompt_ids))
        self.channel.send(
            {
                "args": args,
                "threads": torch.get_num_threads(),
                "longest": Problem("", "", longest.prompt, longest.prompt_ids),
                "shapes": shapes,
                "descriptor": self.file.fileno(),
                # By name, because the functions of a script that is run belong to __main__.
                "interrupt": (f"recipes.{run.script.stem}", interrupt.__name__) if interrupt else None,
            }
        )

    @staticmethod
    def check() -> None:
        """End the program if there is no second device, or core, to generate on."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        if world_size() > 1:
            fail("--overlap works with one process only: leave out --overlap or torchrun.")
        if torch.accelerator.is_available():
            if torch.accelerator.device_count() < 2:
                fail("--overlap needs a second GPU to generate on, but there is only one.")
        elif cores == 1:
            fail("--overlap needs a second CPU core to generate on, but there is only one.")

    @staticmethod
    def weights_file(size: int) -> IO[bytes]:
        """An empty file of that many bytes, in memory if the system has a folder for that."""
        folder = SHARED_MEMORY if SHARED_MEMORY.exists() else None
        if folder and (free := shutil.disk_usage(folder).free) < size:
            fail(
                f"--overlap needs {size / 1e9:.3f} GB of shared memory for the weights, and {folder} has "
                f"{free / 1e9:.3f}: enlarge it (docker run --shm-size)."
            )
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (for as long as the run)
        file.truncate(size)
        return file

    def load(self, version: int, weights: Weights) -> None:
        """Publish new weights as soon as the generator has taken the last ones."""
        while self.loaded < self.published:
            self.receive()
        self.first = version if self.first is None else self.first
        self.shared.write(weights)
        self.published = version
        self.channel.send(("load", version))

    def submit(self, prompts: list[Prompt]) -> None:
        self.channel.send(("submit", prompts))

    def step(self) -> list[Group]:
        """Wait for the next groups that end."""
        while not self.groups:
            self.receive()
        groups, self.groups = self.groups, []
        return groups

    def receive(self) -> None:
        """Take a message. If the generator has ended or stopped, the run ends too, with all earlier steps saved."""
        error, problem = None, ""
        try:
            kind, value = self.channel.receive(SILENT_SECONDS) or (None, None)
        except TimeoutError:
            problem = f"has been silent for {SILENT_SECONDS:g} seconds: perhaps it was stopped."
        except (EOFError, OSError):
            problem = f"has ended with exit code {self.process.wait()}, perhaps for lack of memory."
        else:
            if kind == "error":
                error = value
            elif kind == "groups":
                groups, self.busy = value
                self.groups += groups
            elif kind == "loaded":
                self.loaded = value
        if error or problem:
            if self.first is not None and self.run.step - 1 > self.first:
                self.run.save(self.run.step - 1)
            if error:
                raise error
            fail(f"step {self.run.step}: the generator's process {problem} {resume_hint(self.run)}", code=1)

    def idle(self) -> float:
        """The fraction of the time since the last call in which the generator had nothing to sample."""
        (busy, start), now = self.since, time.perf_counter()
        self.since = self.busy, now
        return max(0.0, 1 - (self.busy - busy) / (now - start))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The generator has no state: prompts whose groups are missing are submitted again."""

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.channel.connection.close()
        self.file.close()
        torch.set_num_threads(self.threads)


def environment() -> dict[str, str]:
    """The process's environment: it finds these modules, and sees only the second GPU."""
    found = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    if torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        found["CUDA_VISIBLE_DEVICES"] = visible.split(",")[1] if visible else "1"
    return found
