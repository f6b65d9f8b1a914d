"""How long the stages of a step take. Each stage is timed inside the function that does its work."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def clock(stage: str) -> Iterator[None]:
    """Add the time spent inside to a stage."""
    yield
