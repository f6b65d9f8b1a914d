"""Adapter for environments of the verifiers package: v1.py for 0.4, v0.py for earlier versions.

    pip install verifiers==0.4.0
    python recipes/agent.py --environment verifiers:NAME --dataset verifiers:NAME --model ...

The package is optional, and only imported when it is asked for.
"""

import importlib
import importlib.util
from functools import cache
from typing import Any

HELD_OUT, MOST = 256, 20_000  # problems

Chat = list[dict[str, Any]]  # messages with role and content


class Undecided:
    """The answer of every problem, with which no text agrees: the reward comes only from the end of an episode."""

    def __call__(self, answer: str) -> bool:
        return False

    def __str__(self) -> str:
        return "decided by the environment"


@cache
def load(task: str) -> tuple[Any, tuple[list[Any], list[Any]]]:
    """The environment of this name, from an installed module, and its (prompt, row) pairs for training and held out."""
    from common.cli import fail, first_line

    name = f"--environment verifiers:{task}"
    if importlib.util.find_spec("verifiers") is None:
        fail(f"{name} needs another package: pip install verifiers==0.4.0.")
    try:
        import verifiers

        interface = "v0" if hasattr(verifiers, "load_environment") else "v1"
        environment = importlib.import_module(f"worlds.verifiers.{interface}").Adapter(task)
        return environment, environment.rows()
    except (Exception, SystemExit) as error:  # of any kind
        fail(f"{name} cannot be loaded: {first_line(error)}")


def problems(task: str) -> tuple[list[Any], list[Any]]:
    """Training and held-out problems: prompt, answer, place, and the environment's row."""
    return tuple(
        [(prompt, Undecided(), f"row {i}", row) for i, (prompt, row) in enumerate(part)] for part in load(task)[1]
    )


def split(rows: list[Any], held_out: list[Any] | None = None) -> tuple[list[Any], list[Any]]:
    """(prompt, row) for training, without the prompts that are held out, and held out; by default the first ones."""
    held_out = rows[: min(HELD_OUT, len(rows) // 5)] if held_out is None else held_out
    asked = {str(prompt) for prompt, _ in held_out}
    return [row for row in rows if str(row[0]) not in asked], held_out
