"""CISPO, which keeps the gradient of every token, reaches DAPO's accuracy in far fewer steps.

Said by: MiniMax-M1, 2506.13585, Sec. 3.1 ("it matches DAPO's performance with only 50% of the training steps"; 16
updates per batch).

Tested: only the losses, without dynamic sampling and length penalty, with z-scores and equal token weights, for 25
steps of 64 responses with 16 updates each: DAPO's clip (0.2 and 0.28; recipes/olmo3.py without its other components)
and cispo.py, whose cap is not published, with 5 and 2. The first step whose training accuracy reaches 0.5; a run that
never reaches it counts as 26.

Rule: 95 % interval of the paired difference in steps for the better cap (which favors CISPO). Reproduced if CISPO needs
fewer by a third of DAPO's mean or more and the interval excludes 0; contradicted if the interval excludes that; an
advantage that is certain but smaller is inconclusive. Void where DAPO clips less than 1 %. An earlier rule asked for
the mean of 5 steps, where 5 is the least and DAPO needs 6: it could not come out as reproduced, and came out
inconclusive, since some runs of CISPO fall too soon to have such a mean.

Not testable here: all arms reach the accuracy after four steps on average, within the five steps of warm-up.
"""

from statistics import mean

from claims.court import VOID
from claims.runs import CLIPPED, REUSE, compare, draw_arms, judged, summarize

KIND = "runs"
SMALLEST = "a third"
ARMS = {
    "DAPO's clip": f"olmo3 {REUSE} --no-filter-groups --max-rounds 1 --std group --clip-eps-high 0.28",
    "CISPO, cap 5": f"cispo {REUSE}",
    "CISPO, cap 2": f"cispo {REUSE} --ratio-cap 2",
}


def steps_needed(t, goal=0.5):
    """The first step whose training accuracy reaches the goal, or one after the last."""
    curve = t.series("accuracy")
    return next((step for step, accuracy in enumerate(curve, 1) if accuracy >= goal), len(curve) + 1)


def compute(seeds):
    pairs = [("DAPO's clip", name) for name in ARMS if name != "DAPO's clip"]
    return compare(ARMS, pairs, seeds, steps_needed, final=lambda t: t.last())


def verdict(result):
    dapo = result["arms"]["DAPO's clip"]
    faster = min(result["differences"], key=result["differences"].get)
    return judged(result, faster, mean(dapo["values"]) / 3, sign=-1) if dapo["clipped"] >= CLIPPED else VOID


def effect(result):
    final = ", ".join(f"{arm['final']:.3f}" for arm in result["arms"].values())
    return f"{summarize(result, 'steps to a training accuracy of 0.5', '.1f')}; held-out accuracy at the end {final}"


def draw(result):
    return draw_arms(result, "16 updates from each batch: CISPO and DAPO's clip", metric="steps to 0.5")
