"""Adapter for environments of the verifiers package, versions 0.1 and 0.2 (`load_environment` of an installed module).

Since 0.3 there is no such call: an environment is a program that talks to a model server.

    pip install verifiers==0.2.1
    python recipes/agent.py --environment verifiers:NAME --dataset verifiers:NAME --model ...

The package is optional, and only imported when it is asked for.
"""

import importlib.util
from functools import cache
from typing import Any

HELD_OUT, MOST = 256, 20_000  # problems


def scored_by_the_environment(answer: str) -> bool:
    """The answer of every problem, never correct: the reward comes only from the end of an episode."""
    return False


@cache
def load(task: str) -> Any:
    """The environment of this name, from an installed module."""
    from common.cli import fail, first_line

    name = f"--environment verifiers:{task}"
    if importlib.util.find_spec("verifiers") is None:
        fail(f"{name} needs another package: pip install verifiers==0.2.1.")
    try:
        import verifiers

        if not hasattr(verifiers, "load_environment"):
            fail(f"{name} needs an older version of the package: pip install verifiers==0.2.1.")
        return verifiers.load_environment(task)
    except Exception as error:  # of any kind
        fail(f"{name} cannot be loaded: {first_line(error)}")


def problems(task: str) -> tuple[list[Any], list[Any]]:
    """Training and held-out problems: prompt, answer, place, and the row of the environment's data set."""
    environment = load(task)
    rows = [dict(row) for row in environment.get_dataset(MOST)]
    held_out = rows[: min(HELD_OUT, len(rows) // 5)]
    if getattr(environment, "eval_dataset", None) is not None:
        held_out = [dict(row) for row in environment.get_eval_dataset(HELD_OUT)]
    asked = [str(row["prompt"]) for row in held_out]
    train = [row for row in rows if str(row["prompt"]) not in set(asked)]
    return tuple(
        [(messages(row["prompt"]), scored_by_the_environment, f"row {i}", row) for i, row in enumerate(part)]
        for part in (train, held_out)
    )


def messages(prompt: Any) -> Any:
    """A prompt as text, or as chat messages with nothing but role and content."""
    if isinstance(prompt, str):
        return prompt
    return [{"role": message["role"], "content": message["content"]} for message in prompt]
