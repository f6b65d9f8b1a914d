"""What is printed, and one clear sentence for a user's mistake."""

import re
import sys
from pathlib import Path
from typing import NoReturn, TextIO

from common import distributed

# In the messages of torch, the system and the loader of shared libraries.
NO_MEMORY = ("not enough memory", "out of memory", "can't allocate", "cannot allocate", "failed to map segment")


def printable(text: str, keep: str = "") -> str:
    """Text with control characters escaped, including line breaks, except those in `keep`."""
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def say(text: str, keep: str = "", end: str = "\n", file: TextIO | None = None) -> None:
    """Print text from any source; text of a model, file or student cannot control the terminal or forge a line."""
    print(printable(text, keep), end=end, file=file, flush=True)


def fail(message: str, code: int = 2) -> NoReturn:
    """Print `error: message` and end the program: exit code 2 for bad input, 1 for a failed run.

    With several processes, only the first to fail prints it.
    """
    if distributed.may_report():
        say(f"error: {message}", file=sys.stderr)
    raise SystemExit(code)


def first_line(error: BaseException) -> str:
    """Type and first line of an exception, for the end of a sentence."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"


def pattern(text: str, name: str) -> re.Pattern[str]:
    """The regular expression of a setting, compiled."""
    try:
        return re.compile(text)
    except re.error as error:
        fail(f"{flag(name)} {text} is no regular expression: {error}.")


def flag(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def on_command_line() -> set[str]:
    """The settings that were given on the command line."""
    words = [word.removeprefix("--").split("=")[0] for word in sys.argv[1:] if word.startswith("--")]
    return {word.removeprefix("no-").replace("-", "_") for word in words}


def expanded(path: Path) -> Path:
    """The path with its ~ expanded."""
    try:
        return path.expanduser()
    except RuntimeError:
        fail(f"{path}: there is no such user.")


def lacks_memory(error: BaseException) -> bool:
    """Whether the machine or a GPU has run out of memory."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in NO_MEMORY)
