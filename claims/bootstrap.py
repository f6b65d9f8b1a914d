"""How firm a verdict by runs is: how often it comes out the same when the seeds are drawn again."""

import random
from functools import cache

from claims.court import NOT_TESTABLE, load, record
from claims.runs import difference

DRAWS = 100


@cache
def stays(name: str) -> float | None:
    """The fraction of 100 draws of a claim's seeds, with replacement, that give its verdict again.

    Where arms are paired, all have the same draw. What a rule needs besides the differences stays as it was measured.
    None if this world cannot test the claim.
    """
    stored, rng = record(name), random.Random(0)
    if stored["verdict"] == NOT_TESTABLE:
        return None
    result, same = stored["result"], 0
    paired, seeds = "degrees" not in result, range(result["seeds"])
    for _ in range(DRAWS):
        drawn = rng.choices(seeds, k=len(seeds))
        values = {
            arm: [of_arm["values"][seed] for seed in (drawn if paired else rng.choices(seeds, k=len(seeds)))]
            for arm, of_arm in result["arms"].items()
        }
        differences = {}
        for pair in result["differences"]:
            found = difference(*(values[arm] for arm in pair.split(" → ")), paired)
            differences[pair] = [found.mean, found.half, 0.0]
        same += load(name).verdict(result | {"differences": differences}) == stored["verdict"]
    return same / DRAWS
