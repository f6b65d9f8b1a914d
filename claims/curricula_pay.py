"""Drawing the prompts whose groups are neither all correct nor all incorrect makes the same responses teach more.

Said by: AdaRFT, 2504.05520, abstract ("reduces training time by up to 2x", by problems that are "challenging but
solvable"); MoPPS, 2507.04632, and SEC, 2505.14970, likewise. ScaleRL, 2510.13786, abstract: a curriculum changes the
compute efficiency and not where training ends.

Tested: on sums, 30 steps of 64 responses: grpo.py, whose prompts are all different, and methods/curriculum.py, which
draws from 64 problems by the variance of the rewards that they have had; a fair trial (claims/fair.py). Held-out
accuracy is measured every 5 steps and averaged over the run, so that learning earlier counts.

Rule: 95 % interval of the difference of that average. Reproduced if the curriculum gains 0.02 or more and the interval
excludes 0; contradicted if the interval excludes a gain of 0.02 and does not lie above 0. The fraction of groups
without signal and the accuracy at the end are reported.

Not testable here: the curriculum left as many groups without signal as there are without it (0.189; 0.176 and 0.190),
so it is not seen whether fewer of them would teach more.
"""

from claims import fair

import numpy as np

KIND = "runs"
SMALLEST = 0.02
WORLDS = ("sums",)
OFTEN = "--eval-every 5 --eval-samples 4"  # during the run a quarter of these samples
ARMS = {"all alike": f"grpo {OFTEN}", "curriculum": f"curriculum {OFTEN} --model sums --dataset sums --pool 64"}
PAIR = ("all alike", "curriculum")


def METRIC(t):
    """Held-out accuracy averaged over the steps, with linear interpolation."""
    points = [(row["step"], row["eval/avg"]) for row in t.rows if "eval/avg" in row]
    return float(np.interp(np.arange(t.settings["steps"] + 1), *zip(*points, strict=True)).mean())


def compute(seeds):
    others = {"no signal": lambda t: t.mean("zero_std_groups"), "end": lambda t: t.last()}
    return fair.compute(ARMS, [PAIR], seeds, WORLDS, metric=METRIC, **others)


def of_worlds(result):
    return fair.in_each_world(result, PAIR, SMALLEST)


def verdict(result):
    return fair.of_both(of_worlds(result))


def effect(result):
    no_signal, end = (", ".join(f"{arm[key]:.3f}" for arm in result["arms"].values()) for key in ("no signal", "end"))
    average = fair.effect(result, of_worlds(result), "accuracy averaged over the run")
    return f"{average}; groups without signal {no_signal}; accuracy at the end {end}"


def draw(result):
    return fair.draw(result, "Prompts drawn alike, and by their signal", "accuracy averaged over the run")
