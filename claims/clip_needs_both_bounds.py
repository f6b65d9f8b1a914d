"""Where rollouts are reused, both bounds of PPO's clip are needed: taking either away costs accuracy.

Said by: PPO, 1707.06347, Table 1 ("the score is negative for the setting without clipping or penalties, because for one
environment (half cheetah) it leads to a very negative score, which is worse than the initial random policy"). DAPO,
2503.14476, Sec. 3.1, and others loosen the upper bound; CISPO, 2506.13585, has no bound that zeroes a gradient. The
same on search is clip_on_search_needs_both_bounds.

Tested: grpo.py on sums for 30 steps of 64 responses with 16 updates each: bounds of 0.2 on both sides, on one, on none;
a fair trial (claims/fair.py). recipes/olmo3.py without its components is grpo.py with a bound for each side. One pass
over each batch, which is 4 updates, stands beside them. In the sweep (reports/learning_rates.json), 1e-4 gave 0.50 with
both bounds and 0.04 with none: with a rate that is too high the clip does matter.

Rule: by held-out accuracy, 95 % intervals of the differences from both bounds. Reproduced if taking away the upper
bound and taking away the lower one each lose 0.05 or more, with intervals that exclude 0; contradicted if one of the
intervals excludes a loss of 0.05 and includes 0 or gains; else inconclusive.
"""

from claims import fair
from claims.court import judge_all

KIND = "runs"
SMALLEST = 0.05
WORLDS = ("sums",)
SIDES = "olmo3 --update-epochs 4 --no-filter-groups --max-rounds 1 --average response --std group"
ARMS = {
    "one pass": "grpo",
    "both": "grpo --update-epochs 4",
    "lower alone": f"{SIDES} --clip-eps-low 0.2 --clip-eps-high 1e6",
    "upper alone": f"{SIDES} --clip-eps-low 1e6 --clip-eps-high 0.2",
    "none": "grpo --update-epochs 4 --clip-eps 1e6",
}
ONE_SIDE = [("both", "lower alone"), ("both", "upper alone")]


def compute(seeds):
    return fair.compute(ARMS, [*ONE_SIDE, ("both", "none"), ("one pass", "both")], seeds, WORLDS)


def verdict(result):
    return judge_all(*(fair.of_both(fair.in_each_world(result, pair, SMALLEST, sign=-1)) for pair in ONE_SIDE))


def effect(result):
    return fair.effect(result, {"sums": verdict(result)})


def draw(result):
    return fair.draw(result, "16 updates from each batch: bounds of the clip")
