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


# Ranges of the settings of all scripts; one that a script does not have is passed over.
RANGES = [
    (
        "at least 1",
        lambda value: value >= 1,
        "steps prompts_per_step responses_per_prompt num_minibatches update_epochs micro_batch_tokens "
        "max_response_tokens eval_problems eval_samples max_rounds top_k",
    ),
    (
        "0 or more",
        lambda value: 0 <= value < math.inf,
        "warmup_steps eval_every save_every kl_beta tis_cap overlong_cache",
    ),
    (
        "above 0",
        lambda value: 0 < value < math.inf,
        "temperature max_grad_norm clip_eps clip_eps_low clip_eps_high clip_log_eps delta value_clip",
    ),
    ("above 0 (inf: no cap)", lambda value: value > 0, "ratio_cap"),
    ("above 0 and at most 1", lambda value: 0 < value <= 1, "lr critic_lr gamma"),
    ("between 0 and 1", lambda value: 0 <= value <= 1, "weight_decay gae_lambda"),
    ("above 0 and below 1", lambda value: 0 < value < 1, "gpu_memory_utilization"),
    ("0 or more and below 1", lambda value: 0 <= value < 1, "ema_decay"),
    ("0 or 1", lambda value: value in (0, 1), "ddof"),
    ("between 0 and 4294967295", lambda value: 0 <= value < 1 << 32, "seed"),
]
MOST_RESPONSES = 1 << 20  # in one rollout batch or evaluation


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
    for a, b in (("prompts_per_step", "responses_per_prompt"), ("eval_problems", "eval_samples")):
        if getattr(args, a) * getattr(args, b) > MOST_RESPONSES:
            fail(f"{flag(a)} times {flag(b)} is more than {MOST_RESPONSES} responses at once: lower one of them.")
    if args.dataset == "arithmetic":
        for name in ("dataset_config", "eval_split", "eval_dataset"):
            if getattr(args, name) is not None:
                fail(f"{flag(name)} belongs to a data set of your own: name it with --dataset.")
    folder = args.run_dir
    if args.resume is None and folder and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        fail(
            f"--run-dir {folder} exists and is not empty; nothing is overwritten: "
            f"name another folder, or go on with the run in it by --resume {folder}."
        )
