"""On search, where rollouts are reused, both bounds of PPO's clip are needed: taking either away costs accuracy.

Said by: PPO, 1707.06347, Table 1 ("the score is negative for the setting without clipping or penalties, because for one
environment (half cheetah) it leads to a very negative score, which is worse than the initial random policy"). The same
on sums, with more sources, is clip_needs_both_bounds.

Tested: grpo.py on search for 40 steps of 64 responses with 16 updates each: bounds of 0.2 on both sides, or on one; a
fair trial (claims/fair.py). recipes/olmo3.py without its components is grpo.py with a bound for each side. One pass
over each batch, which is 4 updates, stands beside them. Training without either bound was tested on sums only.

Rule: by held-out accuracy, 95 % intervals of the differences from both bounds. Reproduced if taking away the upper
bound and taking away the lower one each lose 0.05 or more, with intervals that exclude 0; contradicted if one of the
intervals excludes a loss of 0.05 and includes 0 or gains; else inconclusive.
"""

from claims import fair
from claims.clip_needs_both_bounds import ARMS as ON_SUMS
from claims.clip_needs_both_bounds import ONE_SIDE
from claims.court import judge_all

KIND = "runs"
SMALLEST = 0.05
WORLDS = ("search",)
ARMS = {name: words for name, words in ON_SUMS.items() if name != "none"}


def compute(seeds):
    return fair.compute(ARMS, [*ONE_SIDE, ("one pass", "both")], seeds, WORLDS)


def verdict(result):
    return judge_all(*(fair.of_both(fair.in_each_world(result, pair, SMALLEST, sign=-1)) for pair in ONE_SIDE))


def effect(result):
    return fair.effect(result, {"search": verdict(result)})


def draw(result):
    return fair.draw(result, "16 updates from each batch of search problems: bounds of the clip")
