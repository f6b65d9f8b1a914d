"""How long the stages of a step take. Each stage but training is timed inside the function that does its work."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Seconds of each stage and, on a GPU, each stage's peak memory in GiB."""

    def __init__(self) -> None:
        self.stage: str | None = None
        self.restart()

    def restart(self) -> None:
        """Begin a step."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.gpu_memory: dict[str, float] = defaultdict(float)
        self.start = time.perf_counter()

    def note_memory(self, stage: str) -> None:
        """Record the peak memory since the last call under `stage`."""
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated() / 2**30
            self.gpu_memory[stage] = max(self.gpu_memory[stage], peak)
            torch.cuda.reset_peak_memory_stats()

    def result(self) -> dict[str, float]:
        """The step's numbers so far; call it once per step. Time outside every clock counts as training."""
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        self.note_memory("train")
        self.seconds["train"] = time.perf_counter() - self.start - sum(self.seconds.values())
        seconds = {f"seconds/{stage}": value for stage, value in self.seconds.items()}
        return seconds | {f"gpu_memory/{stage}": peak for stage, peak in self.gpu_memory.items()}


stopwatch = Stopwatch()  # of this process


@contextmanager
def clock(stage: str) -> Iterator[None]:
    """Add the time spent inside to a stage; inside another clock, the time goes to the outer stage."""
    if stopwatch.stage is not None:
        yield
        return
    stopwatch.note_memory("train")
    stopwatch.stage, start = stage, time.perf_counter()
    try:
        yield
    finally:
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        stopwatch.note_memory(stage)
        stopwatch.stage = None
        stopwatch.seconds[stage] += time.perf_counter() - start
