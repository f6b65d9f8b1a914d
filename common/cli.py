"""One clear sentence for a person's mistake, and the checks that come before anything expensive."""

import math
import sys
from typing import Any, NoReturn


def fail(message: str, code: int = 2) -> NoReturn:
    """Print `error: message` and end the program: exit code 2 for bad input, 1 for a failed run."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    raise SystemExit(code)


def first_line(error: BaseException) -> str:
    """Kind and first line of an exception, for the end of a sentence."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"


def flag(name: str) -> str:
    """The flag of a field of Args."""
    return "--" + name.replace("_", "-")


# Ranges of the fields that scripts share; a field that a script does not have is passed over.
RANGES = [
    (
        "at least 1",
        lambda value: value >= 1,
        "steps prompts_per_step responses_per_prompt num_minibatches update_epochs micro_batch_tokens "
        "max_response_tokens eval_problems eval_samples",
    ),
    (
        "0 or more",
        lambda value: 0 <= value < math.inf,
        "seed warmup_steps eval_every save_every weight_decay kl_beta tis_cap",
    ),
    ("above 0", lambda value: 0 < value < math.inf, "temperature lr max_grad_norm"),
]


def check_args(args: Any) -> None:
    """The checks that every script needs; a script checks what its own method needs."""
    for rule, ok, names in RANGES:
        for name in names.split():
            value = getattr(args, name, None)
            if value is not None and not ok(value):
                fail(f"{flag(name)} must be {rule}, not {value}.")
    if args.prompts_per_step % args.num_minibatches:
        fail(
            f"--num-minibatches {args.num_minibatches} does not divide --prompts-per-step "
            f"{args.prompts_per_step}: every minibatch holds the same number of whole groups."
        )
    folder = args.run_dir
    if args.resume is None and folder and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        fail(
            f"--run-dir {folder} exists and is not empty; nothing is overwritten: "
            f"name another folder, or go on with the run in it by --resume {folder}."
        )
