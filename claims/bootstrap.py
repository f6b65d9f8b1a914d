"""How firm a verdict by runs is: how often it comes out the same when the seeds are drawn again."""

import random
from functools import cache
from typing import Any

from claims.court import NOT_TESTABLE, load, record
from claims.runs import difference, measures

DRAWS = 100


@cache
def stays(name: str) -> float | None:
    """The fraction of 100 draws of a claim's seeds, with replacement, that give its verdict again.

    Where arms are paired, all have the same draw. What a rule needs besides values and differences stays as measured.
    None if this world cannot test the claim.
    """
    stored, rng = record(name), random.Random(0)
    if stored["verdict"] == NOT_TESTABLE:
        return None
    result = stored["result"]
    same = sum(load(name).verdict(drawn_again(result, rng)) == stored["verdict"] for _ in range(DRAWS))
    return same / DRAWS


def drawn_again(result: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A result with other seeds, the same for its accuracy where the verdict depends on that too."""
    paired, seeds = "degrees" not in result, range(result["seeds"])
    common = rng.choices(seeds, k=len(seeds))
    draws = {arm: common if paired else rng.choices(seeds, k=len(seeds)) for arm in result["arms"]}
    changed = {}
    for metric, compared in measures(result).items():
        differences = {}
        for pair in compared["differences"]:
            values = [[compared["arms"][arm]["values"][seed] for seed in draws[arm]] for arm in pair.split(" → ")]
            found = difference(*values, paired)
            differences[pair] = [found.mean, found.half, 0.0]
        arms = {
            arm: of | {"values": [of["values"][seed] for seed in draws[arm]]} for arm, of in compared["arms"].items()
        }
        changed[metric] = compared | {"arms": arms, "differences": differences}
    first, *accuracy = changed.values()
    return first | ({"accuracy": accuracy[0]} if accuracy else {})
