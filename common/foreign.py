"""What models and data of other people may not do: name files elsewhere, or compute for ever."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.cli import fail

SECONDS = 10.0  # of processor time, for a prompt of a chat template


@contextmanager
def time_limit() -> Iterator[None]:
    """Raise TimeoutError in a block that takes too long; in the main thread only."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"it takes more than {SECONDS:g} seconds")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def strings(value: Any) -> list[str]:
    """All strings in nested lists and in the values of dictionaries."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] if isinstance(value, str) else [text for part in inner for text in strings(part)]


def require_inside(folder: Path, given: str) -> None:
    """End the program if the description of a data folder names data elsewhere, on this machine or another."""
    import yaml
    from huggingface_hub import DatasetCard

    card, more, described = folder / "README.md", folder / ".huggingface.yaml", {}
    if card.is_file():
        described |= DatasetCard.load(card).data.to_dict()
    if more.is_file():
        described |= yaml.safe_load(more.read_text(encoding="utf-8")) or {}
    for config in described.get("configs") or ():
        for name in strings([config.get("data_files"), config.get("data_dir")]):
            if Path(name).is_absolute() or ".." in Path(name).parts or ":" in name:
                fail(f"{given}: its description names data outside the folder, which are not read: {name!r:.80}")
