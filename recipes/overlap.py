"""A generator in a process of its own: it makes rollout batches while the learner trains on earlier ones.

The schedule is deterministic. It names by number the weights that each batch is sampled with, and the generator waits
for those that do not exist yet, so what it samples does not depend on how fast either process is. On CPUs every run is
the same, and differs from a run without --overlap only by rounding, which depends on the number of threads; on GPUs
rounding may differ in every run. The weights lie in shared memory, a ring of the last k + 1 versions.

In the log, seconds/overlap is the time gained, negative: seconds of generation for which the learner did not wait.
"""

import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import parent_process, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from common.cli import fail
from common.clock import clock, stopwatch
from common.distributed import world_size
from common.ending import SIGNALS, resume_hint
from common.engines import Weights, make_engine
from common.lora import named_weights
from common.models import load_model
from common.records import Problem, Rollouts
from common.run import Run

import torch
import torch.multiprocessing

SHARED_MEMORY = Path("/dev/shm")


class Ring:
    """The last k + 1 versions of a model's weights, in memory that both processes share. Versions count from 1."""

    def __init__(self, model: Any, staleness: int) -> None:
        self.shapes = [(name, weight.shape) for name, weight in named_weights(model)]
        count = sum(shape.numel() for _, shape in self.shapes)
        needed = 4 * count * (staleness + 1)  # bytes
        if SHARED_MEMORY.exists() and (free := shutil.disk_usage(SHARED_MEMORY).free) < needed:
            fail(
                f"--overlap needs {needed / 1e9:.1f} GB of shared memory for {staleness + 1} versions of the weights, "
                f"and {SHARED_MEMORY} has {free / 1e9:.1f}: enlarge it (docker run --shm-size), or lower --staleness."
            )
        self.memory = torch.zeros(staleness + 1, count).share_memory_()  # (k + 1, weights)

    def __getitem__(self, version: int) -> Weights:
        parts = self.memory[version % len(self.memory)].split([shape.numel() for _, shape in self.shapes])
        return [(name, part.view(shape)) for (name, shape), part in zip(self.shapes, parts, strict=True)]

    def write(self, version: int, weights: Weights) -> None:
        for (_, mine), (_, weight) in zip(self[version], weights, strict=True):
            mine.copy_(weight.detach())


class Mailbox:
    """In the generator's process: the ring, and which of its versions are there."""

    def __init__(self, connection: Connection, ring: Ring) -> None:
        self.connection, self.ring = connection, ring
        self.newest = 0
        self.waited = 0.0  # seconds

    def wait_for(self, version: int) -> Weights:
        start = time.perf_counter()
        while self.newest < version:
            self.newest = self.connection.recv()
        self.waited += time.perf_counter() - start
        return self.ring[version]


class Versions(Sequence[Weights]):
    """The weights of a schedule; the generator waits for each when it asks for it."""

    def __init__(self, mailbox: Mailbox, numbers: range) -> None:
        self.mailbox, self.numbers = mailbox, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, i: Any) -> Any:
        return self.mailbox.wait_for(self.numbers[i])


Sample = Callable[[Any, list[Problem], Sequence[Weights], int, Any], tuple[list[Problem], Rollouts]]


def work(connection: Connection, ring: Ring, sample: Sample, args: Any, first: int, threads: int) -> None:
    """The generator's process: receives the problems, and makes the batches of all steps from `first` on."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)
    torch.set_num_threads(threads)
    with ThreadPoolExecutor(1) as sender:  # a batch may wait until the learner takes it; the next one need not
        try:
            train = connection.recv()
            model, tokenizer = load_model(args)
            model.requires_grad_(False)  # no optimizer will take memory for it
            engine = make_engine(args, model, tokenizer, train)
            mailbox = Mailbox(connection, ring)
            for step in range(first, args.steps + 1):
                start, waited = time.perf_counter(), mailbox.waited
                versions = Versions(mailbox, range(max(1, step - args.staleness), step + 1))
                batch = sample(engine, train, versions, step, args)
                seconds = time.perf_counter() - start - (mailbox.waited - waited)
                sender.submit(connection.send, (*batch, seconds))
        except BaseException as error:  # the learner ends the run
            error.add_note(f"in the generator's process:\n{traceback.format_exc()}")
            sender.submit(connection.send, error)


def end_with_parent() -> None:
    parent_process().join()
    os._exit(1)


@contextmanager
def inherited() -> Iterator[None]:
    """What a process that starts inside inherits: of the GPUs the second, and blocked signals.

    Ctrl-C reaches both processes, and the learner decides what it does: here once the block has ended.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    resource_tracker.ensure_running()  # which unblocks signals, and would be started inside
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if torch.cuda.is_available():
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[1] if visible else "1"
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if visible is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible


class Generator:
    """The learner's side: it publishes weights, and receives the batches that are sampled with them."""

    def __init__(self, run: Run, sample: Sample, model: Any, train: list[Problem]) -> None:
        """`sample` generates the batch of one step; it is called in the other process."""
        self.run, self.sample, self.train = run, sample, train
        self.ring = Ring(model, run.args.staleness)
        self.first = self.published = 0
        self.threads = torch.get_num_threads()

    def start(self, first: int) -> None:
        """Begin to generate, with the batch of step `first`."""
        if not torch.accelerator.is_available():
            torch.set_num_threads(max(1, self.threads // 2))  # the generator has the others
        context = torch.multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        few = (other, self.ring, self.sample, self.run.args, first, torch.get_num_threads())  # start blocks on more
        self.process = context.Process(target=work, args=few, daemon=True)
        with inherited():
            self.process.start()
        self.first = first
        other.close()  # so that the end of the process shows at this one
        with suppress(OSError):  # it has ended, as `receive` will find
            self.connection.send(self.train)

    @staticmethod
    def check() -> None:
        """End the program where there is no second device, or core, to generate on."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        if world_size() > 1:
            fail("--overlap belongs to a run of one process: leave it out, or torchrun.")
        if torch.accelerator.is_available():
            if torch.accelerator.device_count() < 2:
                fail("--overlap needs a second GPU to generate on, and here is one.")
        elif cores == 1:
            fail("--overlap needs a second CPU core to generate on, and here is one.")

    def publish(self, step: int, versions: Sequence[Weights]) -> None:
        """Hand over the weights before a step, the last of `versions`, and of the others what is not there yet.

        The first call starts the process.
        """
        if not self.first:
            self.start(step)
        for version, weights in enumerate(versions, step + 1 - len(versions)):
            if version > self.published:
                self.ring.write(version, weights)
        self.published = step
        with suppress(OSError):  # it has ended, as `receive` will find
            self.connection.send(step)

    def batch(
        self, engine: Any, train: list[Problem], versions: Sequence[Weights], step: int, args: Any
    ) -> tuple[list[Problem], Rollouts]:
        """What `sample` gives, from the other process."""
        with clock("sync"):
            self.publish(step, versions)
        with clock("generate"):
            return self.receive(step)

    def receive(self, step: int) -> tuple[list[Problem], Rollouts]:
        """The batch of a step. Where the generator has ended, the run ends too, with the steps before saved.

        The seconds of "generate" become the generator's, those of "overlap" what the learner did not wait for, with
        a minus: together they are the time that the learner waited.
        """
        start = time.perf_counter()
        try:
            result = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            result = None
        if not isinstance(result, tuple):
            if step > self.first:
                self.run.save(step - 1)
            if result:
                raise result
            fail(
                f"step {step}: the generator's process has ended with exit code {self.process.exitcode}, perhaps for "
                f"lack of memory. {resume_hint(self.run)}",
                code=1,
            )
        problems, rollouts, seconds = result
        overlap = time.perf_counter() - start - seconds
        stopwatch.seconds["generate"] -= overlap
        stopwatch.seconds["overlap"] = overlap
        return problems, rollouts

    def close(self) -> None:
        if self.first:
            self.process.kill()
            self.process.join()
            self.connection.close()
            torch.set_num_threads(self.threads)
