"""Silent bugs: runs that do not crash. Some hide a bug, some do not. Look at the curves, and say what it is.

    python silent_bugs.py            # a picture of each run, bug_A.png and so on, and what there is to choose from

A picture shows three seeds of a run beside three of the same script and settings as they should be; which script and
which settings is not said. Seeds differ between the two, so no curve coincides. Write bug, mechanism and the test that
decides into silent_bugs_answers.json, by their short names. Nothing here says whether you are right: hand it in.
"""

import json
import textwrap
from pathlib import Path
from typing import Any

LOGS = Path(__file__).parent / "bugs.json"
PANELS = {
    "accuracy": "accuracy, share correct",
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
# Some of these are in no run, others in more than one.
BUGS = {
    "healthy": "no bug: the runs differ by their seeds alone",
    "scaled-loss": "no bug: the loss has another constant factor",
    "bf16-weights": "weights and optimizer state in bf16, without an fp32 copy",
    "double-tis": "TIS corrects for the sampler where the ratio already does",
    "eos-masked": "pad == eos: the mask built from token values leaves the end-of-sequence token out of the loss",
    "inverted-clip": "the clip is inverted for negative advantages",
    "k1-in-loss": "k1 is used as the KL penalty in the loss",
    "kl-sign": "the KL penalty has the wrong sign",
    "length-normalized": "'Dr. GRPO' that still divides by the response length",
    "no-baseline": "the advantage is the reward itself",
    "shaped-filter": "dynamic sampling filters on the shaped reward instead of on right and wrong",
    "stale-weights": "the engine samples with the weights of five steps ago",
    "top-p": "sampled with top-p 0.8, scored on the full softmax",
}
MECHANISMS = {
    "M1": "Adam divides by the size of the gradient: a constant factor leaves the updates as they are.",
    "M2": "Whether a response stops is neither rewarded nor punished.",
    "M3": "Groups whose answers are all alike pass for groups with signal, and take places in the batch.",
    "M4": "A token's weight depends on how long its response is, so the size of the gradient follows the length.",
    "M5": "Updates are smaller than half the distance to the next number that a weight can be, and are rounded away.",
    "M6": "Everything in a correct response is pushed up, nothing is pushed down, and the noise is large.",
    "M7": "The loss describes a policy that no token was drawn from: unlikely tokens are scored and never seen.",
    "M8": "Other prompts and responses were drawn, and nothing else.",
    "M9": "Tokens that have become much less likely are pushed further down, and the others lose their gradient.",
    "M10": "The expected gradient of the penalty is 0, so nothing holds the policy where it started.",
    "M11": "The policy is rewarded for leaving its start, so the estimate grows without bound.",
    "M12": "The policy that samples lags behind the one that learns.",
    "M13": "A correction is squared, so unlikely tokens of the sampler weigh too much.",
}
TESTS = {
    "T1": "Before any update, compare the sampler's log-probs of its own tokens with the learner's.",
    "T2": "On a softmax over four tokens, compare the expected gradient of the penalty with that of the KL.",
    "T3": "Sum the mask of a response, and compare it with the number of its tokens, the last one included.",
    "T4": "Take the gradient of the loss at ratios of 0.5, 1 and 1.5 for both signs of the advantage.",
    "T5": "Run more seeds, and see whether the intervals overlap in every panel.",
    "T6": "Double one response in a mask: do the weights of its tokens change?",
    "T7": "Make one update at a small learning rate, and count the weights that have changed.",
    "T8": "Give the filter a group of correct answers with different lengths: is it discarded?",
    "T9": "Multiply the loss by ten: are the weights after an update other ones?",
    "T10": "Compute the mean advantage of a group: is it 0?",
    "T11": "Compare the engine's weights with the learner's at the start of a step.",
    "T12": "Evaluate the penalty at random log-probs: is it ever negative?",
    "T13": "With a sampler half as sure of a token, is its weight twice as large, or four times?",
}


def runs() -> dict[str, dict[str, list[list[dict[str, float]]]]]:
    """By letter: the logs of the run `shown` and of the `healthy` script, one per seed, one row per step."""
    return json.loads(LOGS.read_text())["runs"]


def show_bug(letter: str) -> Any:
    """The run's curves beside the healthy ones; a figure."""
    import matplotlib.pyplot as plt

    record = runs()[letter]
    panels = {m: label for m, label in PANELS.items() if m in record["healthy"][0][0]}
    figure, grid = plt.subplots(2, 5, figsize=(15, 5), sharex=True, layout="constrained")
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes, (metric, label) in zip(grid.flat, panels.items(), strict=False):
        for kind, color, name in (("healthy", "#888888", "as it should be"), ("shown", "#D55E00", f"run {letter}")):
            for i, log in enumerate(record[kind]):
                points = [(row["step"], row[metric]) for row in log if metric in row]
                axes.plot(*zip(*points, strict=True), color=color, linewidth=1, label=None if i else name)
        axes.set(xlabel="step", ylabel=label)
        axes.grid(alpha=0.3)
    grid.flat[0].legend()
    return figure


def blank_form() -> str:
    """The file that is handed in, with nothing filled in."""
    lines = [f'  "{letter}": {{"bug": "", "mechanism": "", "test": ""}}' for letter in runs()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    for letter in runs():
        show_bug(letter).savefig(f"bug_{letter}.png", dpi=100)
    for name, choices in (("bug", BUGS), ("mechanism", MECHANISMS), ("test", TESTS)):
        print(f"\n{name}")
        for short, text in choices.items():
            print(textwrap.fill(text, 100, initial_indent=f"  {short:<18}", subsequent_indent=" " * 20))
