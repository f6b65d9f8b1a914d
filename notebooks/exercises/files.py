"""Read the files that a student wrote. The check and the grader read them alike."""

import re
import stat
from collections.abc import Iterable
from pathlib import Path

LARGEST = 1 << 20  # bytes per file
MISSING = "the file is missing."


class Unusable(Exception):
    """A file that cannot be graded; the message says why."""


def read(path: Path) -> str:
    """The text of a file, without a byte-order mark."""
    try:
        kind = path.lstat()
        if not stat.S_ISREG(kind.st_mode):
            raise Unusable("it is not a plain file.")
        if kind.st_size > LARGEST:
            raise Unusable("the file is larger than 1 MiB.")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise Unusable(MISSING) from None
    except UnicodeDecodeError:
        raise Unusable("the file is not text in UTF-8: save it in that encoding.") from None
    except OSError as error:
        raise Unusable(f"the file cannot be read: {error.strerror}.") from None


def choice(text: str, choices: Iterable[str]) -> str:
    """The method that a file names in the line `CHANGE = "method"`."""
    match = re.search(r"^CHANGE *= *[\"'](\w*)[\"']", text, re.M)
    if not match or match[1] not in choices:
        raise Unusable(f'CHANGE does not name one of {", ".join(choices)}: write CHANGE = "dr_grpo", for example.')
    return match[1]


def sources(folder: Path, scripts: Iterable[str], asked: str) -> dict[str, str]:
    """By script, the text of every readable file. If one in `asked` cannot be read, `Unusable` says why."""
    found = {asked: read(folder / f"{asked}.py")}
    for script in scripts:
        try:
            found[script] = read(folder / f"{script}.py")
        except Unusable:  # ignored unless a function imports it, which then fails
            continue
    return found
