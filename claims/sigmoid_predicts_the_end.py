"""A sigmoid fitted to the first half of a training curve predicts its end.

Said by: ScaleRL, 2510.13786, Abstract ("Stable, scalable recipes follow predictable scaling trajectories, enabling
extrapolation from smaller-scale runs") and Eq. 1 (R - R_0 = (A - R_0) / (1 + (C_mid / C)^B)).

Tested: training accuracy of 50 steps of 64 responses with DAPO's loss (recipes/olmo3.py without its components, all
groups kept). The sigmoid, with R_0 the base model's accuracy, is fitted to the first 25 steps and predicts the mean of
the last 10; the comparison is a constant prediction, the mean of steps 21 to 25.

Rule: reproduced if the sigmoid's absolute error is smaller than that of the last value, by 0.02 or more, with a 95 %
interval of the paired difference that excludes 0; contradicted if the interval excludes such a gain; one that is
certain but smaller is inconclusive.
"""

from claims.runs import compare, draw_arms, judged, summarize

import numpy as np
from scipy.optimize import curve_fit

KIND = "runs"
SMALLEST = 0.02
CURVE = "olmo3 --eval-every 5 --eval-samples 16 --steps 50 --no-filter-groups --max-rounds 1 --std group"
ARMS = dict.fromkeys(("last value", "sigmoid"), f"{CURVE} --clip-eps-high 0.28")
END = 10


def sigmoid_error(t):
    curve, start = np.array(t.series("accuracy")), t.rows[0]["eval/avg"]
    steps = np.arange(1, len(curve) + 1)

    def sigmoid(step, ceiling, middle, slope):
        return start + (ceiling - start) / (1 + (middle / step) ** slope)

    half = len(curve) // 2
    fit, _ = curve_fit(sigmoid, steps[:half], curve[:half], (0.8, 10, 1), bounds=((start, 0.1, 0.1), (1, 500, 10)))
    return abs(float((sigmoid(steps, *fit) - curve)[-END:].mean()))


def last_value_error(t):
    curve = t.series("accuracy")
    half = len(curve) // 2
    return abs(float(np.mean(curve[max(0, half - 5) : half]) - np.mean(curve[-END:])))


def compute(seeds):
    metrics = {"last value": last_value_error, "sigmoid": sigmoid_error}
    return compare(ARMS, [("last value", "sigmoid")], seeds, metrics)


def verdict(result):
    return judged(result, "last value → sigmoid", SMALLEST, sign=-1)


def effect(result):
    return summarize(result, "absolute error of the predicted end")


def draw(result):
    return draw_arms(result, "Half a curve predicts its end", metric="absolute error of the prediction")
