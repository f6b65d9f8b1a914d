"""R = -a exp(H) + b, fitted to the first half of a run, gives the accuracy at its end from the entropy at its end.

Said by: "The Entropy Mechanism of RL for Reasoning Language Models", 2505.22617, Abstract ("the policy performance is
traded from policy entropy, thus bottlenecked by its exhaustion, and the ceiling is fully predictable"). There,
coefficients fitted to the first 36 steps predict the next 200 with an error of about 1 %.

Tested: grpo.py on sums (30 steps of 64 responses) and on search (40 steps), a fair trial (claims/fair.py). a and b are
fitted, in each run, to accuracy and entropy of the first half of its steps, by least squares. From the entropies of the
last 10 steps they predict the mean accuracy of these steps.

Rule: the error of the prediction, in either direction, by 95 % interval of its mean over the runs. Reproduced if the
interval lies below 0.05; contradicted if it lies above 0.05; inconclusive if it holds 0.05, or the two worlds differ.
Reported: the error of predicting that nothing changes after the first half.
"""

from statistics import mean

from claims import fair
from claims.court import CONTRADICTED, INCONCLUSIVE, REPRODUCED
from tools.stats import interval

import numpy as np
from scipy.stats import linregress

KIND = "runs"
SMALLEST = 0.05
ARMS = {"GRPO": "grpo"}
END = 10


def law_error(run):
    accuracy, spread = np.array(run.series("accuracy")), np.exp(run.series("entropy"))
    half = len(accuracy) // 2
    fit = linregress(spread[:half], accuracy[:half])
    return abs(float((fit.slope * spread + fit.intercept - accuracy)[-END:].mean()))


def unchanged_error(run):
    accuracy = np.array(run.series("accuracy"))
    half = len(accuracy) // 2
    return abs(float(accuracy[half - 5 : half].mean() - accuracy[-END:].mean()))


def compute(seeds):
    return fair.compute(ARMS, [], seeds, metric=law_error, curve="entropy", unchanged=unchanged_error)


def errors(result):
    """Mean error in each world, and half of its interval."""
    return {world: interval(result["arms"][f"GRPO, {world}"]["values"]) for world in fair.worlds_of(result)}


def of_worlds(result):
    return {
        world: REPRODUCED if mean + half < SMALLEST else CONTRADICTED if mean - half > SMALLEST else INCONCLUSIVE
        for world, (mean, half) in errors(result).items()
    }


def verdict(result):
    return fair.of_both(of_worlds(result))


def deciding(result):
    """What the verdict depends on: no difference between arms."""
    return ", ".join(
        f"{world} {error:.3f} ± {half:.3f} ({result['arms'][f'GRPO, {world}']['unchanged']:.3f} if nothing changes)"
        for world, (error, half) in errors(result).items()
    )


def effect(result):
    means = ", ".join(f"{name} {mean(arm['values']):.3f}" for name, arm in result["arms"].items())
    return f"error of the predicted accuracy: {deciding(result)}; {means}"


def draw(result):
    return fair.draw(result, "Accuracy at the end, predicted from entropy", "error of the prediction")
