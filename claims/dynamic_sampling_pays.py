"""Dynamic sampling is worth the responses that it throws away.

Said by: DAPO, 2503.14476, Fig. 6 and Sec. 4.2 ("although the number of sampling instances increases, the model's
convergence time is even reduced, due to fewer training steps required"). ScaleRL, 2510.13786, drops groups without
signal and does not replace them.

Tested: DAPO's loss without its length penalty, on sums and on search: all groups kept (recipes/olmo3.py without its
components, 50 steps); groups without signal replaced (dapo.py, 30 steps); a fair trial (claims/fair.py). Held-out
accuracy is measured every 5 steps and averaged over the generated responses, including discarded ones, up to the 3200
of the first arm.

Rule: 95 % interval of the difference of that average. Reproduced if refilling gains 0.02 or more and the interval
excludes 0; contradicted if the interval excludes a gain of 0.02; one that is certain but smaller is inconclusive, and
so is a difference between the two worlds. The same at equal steps is reported.
"""

from claims import fair

import numpy as np

KIND = "runs"
SMALLEST = 0.02
OFTEN = "--eval-every 5 --eval-samples 4"  # during the run a quarter of these samples
ARMS = {
    "all groups": f"olmo3 {OFTEN} --steps 50 --no-filter-groups --max-rounds 1 --std group --clip-eps-high 0.28",
    "refilled": f"dapo {OFTEN} --steps 30 --overlong-cache 0",
}
PAIR = ("all groups", "refilled")
RESPONSES = 3200  # 50 rounds of 8 prompts
STEPS = 30


def average(t, most, per_step):
    """Held-out accuracy averaged over a budget of generated responses or steps, with linear interpolation."""
    spent, points = 0, []
    for row in t.rows:
        if row["step"] > 0:
            spent += 1 if per_step else row.get("sampled_prompts", 8) * 8
        if "eval/avg" in row:
            points.append((spent, row["eval/avg"]))
    grid = np.linspace(0, most, 200)
    return float(np.interp(grid, *zip(*points, strict=True)).mean())


def METRIC(t):
    return average(t, RESPONSES, per_step=False)


def compute(seeds):
    by_steps = {"by steps": lambda t: average(t, STEPS, per_step=True)}
    return fair.compute(ARMS, [PAIR], seeds, metric=METRIC, **by_steps)


def of_worlds(result):
    return fair.in_each_world(result, PAIR, SMALLEST)


def verdict(result):
    return fair.of_both(of_worlds(result))


def effect(result):
    steps = ", ".join(f"{arm['by steps']:.3f}" for arm in result["arms"].values())
    return f"{fair.effect(result, of_worlds(result), 'mean accuracy over equal responses')}; over equal steps {steps}"


def draw(result):
    title = "All groups kept, and groups without signal refilled"
    return fair.draw(result, title, "mean accuracy over equal responses")
