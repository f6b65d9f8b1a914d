"""Fair trials at equal numbers of tokens: the arm that was trained on more of them is run again with fewer steps.

Arms have equal numbers of responses. One that learns to write longer ones is trained on more tokens, so the claim also
shows the difference that is left when both arms end after as many tokens.
"""

import statistics
from itertools import accumulate
from typing import Any

from claims import fair, runs
from claims.court import load, record, rounded, store
from common.cli import fail

CLOSE = 0.05  # arms whose tokens differ by a smaller fraction are not compared again
SEEDS = 8  # of the shorter runs; fewer than a verdict has, since they decide nothing
FULL = 2  # whole runs that show after how many steps an arm has been trained on a number of tokens


def steps_of(words: str, fraction: float) -> int:
    """The step whose end is nearest to a fraction of the tokens that an arm is trained on."""
    spent = [list(accumulate(t.series("response_tokens"))) for t in runs.trials({"": words}, FULL)[""]]
    mean = [statistics.mean(run[step] / run[-1] for run in spent) for step in range(len(spent[0]))]
    return 1 + min(range(len(mean)), key=lambda step: abs(mean[step] - fraction))


def uneven(result: dict[str, Any]) -> dict[str, str]:
    """The pairs of arms whose tokens differ, each with the arm that has more of them; no control."""
    tokens, found = {arm: of_arm["tokens"] for arm, of_arm in result["arms"].items()}, {}
    for pair in result["differences"]:
        few, many = sorted(pair.split(" → "), key=tokens.get)
        if f" {fair.AGAIN}, " not in pair and tokens[few] < (1 - CLOSE) * tokens[many]:
            found[pair] = many
    return found


def compare(name: str) -> dict[str, Any]:
    """Compare the arms of a fair trial again at equal numbers of tokens, and store the differences."""
    claim, stored = load(name), record(name)
    if stored is None or "degrees" not in stored["result"]:
        fail(f"{name} is no fair trial with a result: python -m claims lists the claims.")
    result, found = stored["result"], {}
    words = fair.all_arms(claim.ARMS, fair.worlds_of(result))
    metric = getattr(claim, "METRIC", runs.accuracy)
    for pair, longer in uneven(result).items():
        arms = {arm: result["arms"][arm] for arm in pair.split(" → ")}
        (other,) = arms.keys() - {longer}
        steps = steps_of(words[longer], arms[other]["tokens"] / arms[longer]["tokens"])
        cut = runs.trials({"": f"{words[longer]} --steps {steps}"}, SEEDS)[""]
        values = {other: arms[other]["values"], longer: [metric(t) for t in cut]}
        change = runs.difference(*(values[arm] for arm in arms), paired=False)
        found[pair] = {
            "shorter": longer,
            "steps": steps,
            "tokens": statistics.mean(t.budget["tokens"] for t in cut),
            "values": values[longer],
            "difference": [change.mean, change.half, change.detectable],
        }
    about = {key: value for key, value in stored.items() if key not in ("verdict", "effect", "result")}
    found = rounded(found)
    store(name, result | {"equal_tokens": found}, **about)
    return found
