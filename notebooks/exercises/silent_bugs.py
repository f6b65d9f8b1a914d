"""Silent bugs: seven runs that do not crash. Look at the curves, name the bug.

`bugs.json` holds each run's log beside that of the healthy script with the same settings and seed, and a fingerprint of
the answer, so that `name_bug` can confirm it without this file knowing it.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

LOGS = Path(__file__).parent / "bugs.json"
NAMES = {
    "inverted-clip": "the clip is inverted for negative advantages",
    "k1-in-loss": "k1 is used as the KL penalty in the loss",
    "eos-masked": "pad == eos: the mask built from token values leaves the end-of-sequence token out of the loss",
    "length-normalized": "'Dr. GRPO' that still divides by the response length",
    "bf16-weights": "weights and optimizer state in bf16, without an fp32 copy",
    "top-p": "sampled with top-p 0.8, scored on the full softmax",
    "shaped-filter": "dynamic sampling filters on the shaped reward instead of on right and wrong",
}
PANELS = {
    "accuracy": "accuracy, share right",
    "length": "response length, tokens",
    "entropy": "entropy, nats per token",
    "truncated": "share of responses cut off",
    "kl": "KL to the initial model, as estimated",
    "ratio_max": "largest ratio before clipping",
    "clip_neg": "clipped share, A < 0",
    "grad_norm": "gradient norm before clipping",
    "mismatch_mean": "mean |Δp| of sampler and learner",
    "sampled_prompts": "prompts drawn per step",
}


def fingerprint(letter: str, name: str) -> str:
    return hashlib.sha256(f"{letter}: {name}".encode()).hexdigest()


def show_bug(letter: str) -> Any:
    """The run's curves beside the healthy ones; a figure."""
    record = json.loads(LOGS.read_text())["runs"][letter]
    panels = {m: label for m, label in PANELS.items() if any(m in row for row in record["healthy"])}
    figure, grid = plt.subplots(2, 5, figsize=(15, 5), sharex=True, layout="constrained")
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes, (metric, label) in zip(grid.flat, panels.items(), strict=False):
        for rows, color, line, name in (
            (record["healthy"], "#666666", "--", f"{record['script']}.py"),
            (record["buggy"], "#D55E00", "-", f"bug {letter}"),
        ):
            points = [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]
            axes.plot(*zip(*points, strict=True), color=color, linestyle=line, label=name)
        axes.set(xlabel="step", ylabel=label)
        axes.grid(alpha=0.3)
    grid.flat[0].legend()
    return figure


def name_bug(letter: str, name: str) -> str:
    """Whether this is the bug."""
    if name not in NAMES:
        return f"{name!r} is none of the bugs: {', '.join(NAMES)}."
    runs = json.loads(LOGS.read_text())["runs"]
    if letter not in runs:
        return f"there is no bug {letter!r}: {', '.join(runs)}."
    if fingerprint(letter, name) == runs[letter]["answer"]:
        return f"Yes: {NAMES[name]}."
    return "No. Which of the curves should look different if it were so?"
