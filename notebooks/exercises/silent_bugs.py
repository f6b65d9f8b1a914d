"""Silent bugs: runs that do not crash. Some have a bug, some do not. Find each bug from the curves.

    python silent_bugs.py            # plots each run to bug_A.png and so on, and prints the choices

A picture shows three seeds of a run and three healthy seeds of the same script and settings. Script and settings are
hidden. Seeds differ between the two, so no curves coincide. Write bug, mechanism and deciding test, by their short
names, into silent_bugs_answers.json and hand it in; this folder cannot check it. For a healthy run only the bug counts.
"""

import json
import textwrap
from pathlib import Path
from typing import Any

LOGS = Path(__file__).parent / "bugs.json"
PANELS = {
    "accuracy": "accuracy, fraction correct",
    "length": "response length, tokens",
    "entropy": "entropy, nats per token",
    "kl": "KL to the initial model, as estimated",
    "ratio_max": "largest ratio before clipping",
    "ratio_min": "smallest ratio before clipping",
    "clip_neg": "clipped fraction, A < 0",
    "grad_norm": "gradient norm before clipping",
    "mismatch_mean": "mean |Δp| of engine and learner",
    "sampled_prompts": "prompts sampled per step",
}
# Some of these occur in no run, others in several.
BUGS = {
    "healthy": "no bug: the runs differ only in their seeds",
    "scaled-loss": "no bug: the loss has another constant factor",
    "bf16-weights": "weights and optimizer state in bf16, without an fp32 copy",
    "double-tis": "TIS corrects for the engine although the ratio already does",
    "eos-masked": "pad == eos: the mask, built from token values, leaves the end-of-sequence token out of the loss",
    "inverted-clip": "the clip is inverted for negative advantages",
    "k1-in-loss": "k1 is used as the KL penalty in the loss",
    "kl-sign": "the KL penalty has the wrong sign",
    "length-normalized": "'Dr. GRPO' that still divides by the response length",
    "no-baseline": "the advantage is the reward itself",
    "shaped-filter": "dynamic sampling filters on the shaped reward instead of on correctness",
    "stale-weights": "the engine samples with the weights of five steps ago",
    "top-p": "sampled with top-p 0.8, scored on the full softmax",
}
MECHANISMS = {
    "M1": "Adam divides by the size of the gradient, so a constant factor does not change the updates.",
    "M2": "Whether a response stops is neither rewarded nor punished.",
    "M3": "Groups whose answers are all correct or all incorrect count as groups with signal and fill the batch.",
    "M4": "A token's weight depends on the length of its response, so the size of the gradient follows the length.",
    "M5": "Updates are smaller than half the distance to the next representable weight and are rounded away.",
    "M6": "All tokens of correct responses are reinforced, none are penalized, and the noise is large.",
    "M7": "The loss describes a policy that no token was sampled from: unlikely tokens are scored but never sampled.",
    "M8": "Other prompts and responses were sampled; nothing else differs.",
    "M9": "Tokens that became much less likely become even less likely, and the others lose their gradient.",
    "M10": "The expected gradient of the penalty is 0, so nothing keeps the policy near its start.",
    "M11": "The policy is rewarded for moving away from its start, so the estimate grows without bound.",
    "M12": "The policy that samples lags behind the one that learns.",
    "M13": "A correction is squared, so tokens that are unlikely in the engine get too much weight.",
}
TESTS = {
    "T1": "Before any update, compare the engine's log-probs of its tokens with the learner's.",
    "T2": "On a softmax over four tokens, compare the expected gradient of the penalty with that of the KL.",
    "T3": "Compare the sum of a response's mask with the number of its tokens, including the last one.",
    "T4": "Take the gradient of the loss at ratios of 0.5, 1 and 1.5 for both signs of the advantage.",
    "T5": "Run more seeds and check whether the intervals overlap in every panel.",
    "T6": "Double one response in a mask: do the weights of its tokens change?",
    "T7": "Make one update with a small learning rate and count the weights that changed.",
    "T8": "Give the filter a group of correct answers with different lengths: is it discarded?",
    "T9": "Multiply the loss by ten: do the weights after an update change?",
    "T10": "Compute the mean advantage of a group: is it 0?",
    "T11": "Compare the engine's weights with the learner's at the start of a step.",
    "T12": "Evaluate the penalty at random log-probs: is it ever negative?",
    "T13": "If the engine's probability of a token is halved, is its weight doubled or quadrupled?",
}


def runs() -> dict[str, dict[str, list[list[dict[str, float]]]]]:
    """By letter: logs of the `shown` run and of the `healthy` one, one per seed, with one row per step."""
    return json.loads(LOGS.read_text())["runs"]


def show_bug(letter: str) -> Any:
    """A figure with the run's curves and the healthy ones."""
    import matplotlib.pyplot as plt

    record = runs()[letter]
    panels = {m: label for m, label in PANELS.items() if m in record["healthy"][0][0]}
    figure, grid = plt.subplots(2, 5, figsize=(15, 5), sharex=True, layout="constrained")
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes, (metric, label) in zip(grid.flat, panels.items(), strict=False):
        for kind, color, name in (("healthy", "#888888", "healthy"), ("shown", "#D55E00", f"run {letter}")):
            for i, log in enumerate(record[kind]):
                points = [(row["step"], row[metric]) for row in log if metric in row]
                axes.plot(*zip(*points, strict=True), color=color, linewidth=1, label=None if i else name)
        axes.set(xlabel="step", ylabel=label)
        axes.grid(alpha=0.3)
    grid.flat[0].legend()
    return figure


def blank_form() -> str:
    """The answer file, not filled in."""
    lines = [f'  "{letter}": {{"bug": "", "mechanism": "", "test": ""}}' for letter in runs()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    for letter in runs():
        show_bug(letter).savefig(f"bug_{letter}.png", dpi=100)
    for name, choices in (("bug", BUGS), ("mechanism", MECHANISMS), ("test", TESTS)):
        print(f"\n{name}")
        for short, text in choices.items():
            print(textwrap.fill(text, 100, initial_indent=f"  {short:<18}", subsequent_indent=" " * 20))
