"""The solution of the silent bugs. It is not in the handout."""

import hashlib
import random
import string
from pathlib import Path

from common.cli import fail
from tools.scripts import ROOT

# By letter: a practice run's bug, and the bug whose script and settings (in make_bugs.py) the run uses.
PRACTICE = {
    "A": ("shaped-filter", "shaped-filter"),
    "B": ("healthy", "top-p"),
    "C": ("k1-in-loss", "k1-in-loss"),
    "D": ("bf16-weights", "bf16-weights"),
    "E": ("scaled-loss", "scaled-loss"),
    "F": ("kl-sign", "kl-sign"),
    "G": ("top-p", "top-p"),
    "H": ("healthy", "scaled-loss"),
    "I": ("length-normalized", "length-normalized"),
}
# The mechanism and deciding test of each bug, by their short names in silent_bugs.py.
KEY = {
    "healthy": ("M8", "T5"),
    "scaled-loss": ("M1", "T9"),
    "bf16-weights": ("M5", "T7"),
    "k1-in-loss": ("M10", "T2"),
    "kl-sign": ("M11", "T12"),
    "length-normalized": ("M4", "T6"),
    "shaped-filter": ("M3", "T8"),
    "top-p": ("M7", "T1"),
}
# By bug: a panel, and the minimum factor between its geometric mean over the steps and that of healthy runs.
STATISTICS = {
    "scaled-loss": ("grad_norm", 0.3),
    "bf16-weights": ("kl", 0.2),
    "k1-in-loss": ("grad_norm", 1.2),
    "kl-sign": ("kl", 2.0),
    "length-normalized": ("grad_norm", 1.5),
    "shaped-filter": ("sampled_prompts", 0.86),
    "top-p": ("mismatch_mean", 1000.0),
}
KEPT = ROOT / "runs" / "silent_bugs"
HEALTHY = 4  # healthy runs among those that a key draws


def check_key(key: str | None, bugs: bool = False) -> None:
    """End the program if a command lacks its key. An unset shell variable gives an empty key."""
    if key is not None and not key.strip():
        fail("--key is empty: pass the secret of your class.")
    if bugs and key is None:
        fail("--bugs needs --key: without a key there are only the practice runs.")


def class_logs(key: str) -> Path:
    """The file with a key's runs. Its folder's name does not reveal the key."""
    return KEPT / hashlib.sha256(key.encode()).hexdigest()[:16] / "bugs.json"


def plan(key: str | None = None) -> dict[str, tuple[str, str]]:
    """Like PRACTICE; with a key, five different bugs and four healthy runs with any bug's settings."""
    if key is None:
        return PRACTICE
    rng, bugs = random.Random(f"{key}/bugs"), [bug for bug in KEY if bug != "healthy"]
    drawn = [(bug, bug) for bug in rng.sample(bugs, len(PRACTICE) - HEALTHY)]
    drawn += [("healthy", bug) for bug in rng.sample(bugs, HEALTHY)]
    rng.shuffle(drawn)
    return dict(zip(string.ascii_uppercase, drawn, strict=False))
