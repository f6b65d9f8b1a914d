"""On sums of 5 to 8 terms, 60 steps of GRPO raise pass@1 and lower pass@32.

Said by: "Does Reinforcement Learning Really Incentivize Reasoning Capacity in LLMs Beyond the Base Model?", 2504.13837
(Abstract: "base models achieve higher pass@k score when k is large"); MaxRL, 2602.02710, starts from it.

Tested: pass@32, from 32 samples at temperature 1, of 256 held-out sums of 5 to 8 terms, before and after 60 steps of
grpo.py at the learning rate that is best for pass@1. Every run has seeds, problems and samples of its own: they are
those of maxrl_keeps_pass_at_k_in_training.py, a fair trial (claims/fair.py).

Rule: reproduced if pass@1 rises and pass@32 falls by 0.02 or more, with a 95 % interval over seeds that excludes 0;
contradicted if the interval excludes such a fall of pass@32, or if pass@1 does not rise; a fall that is certain but
smaller is inconclusive.
"""

from claims import fair
from claims.court import CONTRADICTED
from claims.runs import compare, draw_arms, judged, summarize

KIND = "runs"
SMALLEST = 0.02
WORLDS = ("sums-hard",)
ARMS = {"GRPO": "grpo"}


def compute(seeds):
    metrics = {"before": lambda t: t.rows[0]["eval/pass@32"], "after": lambda t: t.last("eval/pass@32")}
    once = {"pass@1 before": lambda t: t.rows[0]["eval/avg"], "pass@1 after": lambda t: t.last()}
    arms = dict.fromkeys(metrics, fair.all_arms(ARMS, WORLDS)["GRPO, sums-hard"])
    return compare(arms, [("before", "after")], seeds, metrics, **once)


def verdict(result):
    word = judged(result, "before → after", SMALLEST, sign=-1)
    arm = result["arms"]["after"]
    return CONTRADICTED if arm["pass@1 after"] <= arm["pass@1 before"] else word


def deciding(result):
    """What else the verdict depends on, besides the difference."""
    arm = result["arms"]["after"]
    return f"pass@1 {arm['pass@1 before']:.3f} before, {arm['pass@1 after']:.3f} after"


def effect(result):
    return f"{summarize(result, 'pass@32')}; {deciding(result)}"


def draw(result):
    return draw_arms(result, "Sums of 5 to 8 terms, before and after 60 steps of GRPO", metric="pass@32")
