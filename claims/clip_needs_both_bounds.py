"""Where rollouts are reused, both bounds of PPO's clip are needed: taking either away costs accuracy.

Said by: PPO, 1707.06347, Table 1 (without clipping or penalty it ends below a random policy). DAPO, 2503.14476, Sec.
3.1, and others loosen the upper bound; CISPO, 2506.13585, has no bound that zeroes a gradient.

Tested: grpo.py for 25 steps of 64 responses with 16 updates each: bounds of 0.2 on both sides, on one, on none.
recipes/olmo3.py without its components is grpo.py with a bound for each side.

Rule: by held-out accuracy, 95 % intervals of the paired differences from both bounds. Reproduced if taking away the
upper bound and taking away the lower one each lose 0.05 or more, with intervals that exclude 0; contradicted if one of
the intervals excludes a loss of 0.05. Void where less than 1 % is clipped.
"""

from claims.court import judge_all
from claims.runs import REUSE, compare, draw_arms, judged, judged_by_clip, summarize

KIND = "runs"
SMALLEST = 0.05
SIDES = f"olmo3 {REUSE} --no-filter-groups --max-rounds 1 --average response --std group"
ARMS = {
    "both": f"grpo {REUSE}",
    "lower alone": f"{SIDES} --clip-eps-low 0.2 --clip-eps-high 1e6",
    "upper alone": f"{SIDES} --clip-eps-low 1e6 --clip-eps-high 0.2",
    "none": f"grpo {REUSE} --clip-eps 1e6",
}


def compute(seeds):
    return compare(ARMS, [("both", name) for name in ARMS if name != "both"], seeds)


def verdict(result):
    found = [judged(result, f"both → {one} alone", SMALLEST, sign=-1) for one in ("lower", "upper")]
    return judged_by_clip(result, judge_all(*found))


effect = summarize


def draw(result):
    return draw_arms(result, "16 updates from each batch: bounds of the clip")
