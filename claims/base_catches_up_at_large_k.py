"""Sampled often enough, the base model solves more problems than the model trained on them.

Said by: "Does Reinforcement Learning Really Incentivize Reasoning Capacity in LLMs Beyond the Base Model?", 2504.13837
(Abstract: "base models achieve higher pass@k score when k is large", such as 256).

Tested: grpo.py on search, where pass@1 rises fourfold, for 40 steps of 64 responses at its best learning rate of three
(that of habits_decide_what_rl_gains). pass@k up to k = 256 before and after, at temperature 1; each run has 16 held-out
problems of its own, with 256 samples of each.

Rule: 95 % interval of the paired difference in pass@256. Reproduced if pass@1 rises and pass@256 falls by 0.02 or more,
with an interval that excludes 0; contradicted if the interval excludes such a fall, or if pass@1 does not rise.

Not testable here: a problem has eight possible expressions, so 256 guesses solve each, before training and after it.
"""

from claims.court import CONTRADICTED
from claims.runs import BLUE, GRAY, SEARCH, compare, judged, panel, summarize

from matplotlib.figure import Figure

KIND = "runs"
SMALLEST = 0.02
RUN = f"grpo {SEARCH} --model search --lr 1e-4 --eval-problems 16 --eval-samples 256 --eval-seed SEED @3000"
ARMS = {"before": RUN, "after": RUN}
KS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def pass_at_k(k, step):
    return lambda t: t.rows[step][f"eval/pass@{k}"]


def compute(seeds):
    metrics = {"before": pass_at_k(256, 0), "after": pass_at_k(256, -1)}
    others = {f"pass@{k} {when}": pass_at_k(k, step) for k in KS for when, step in zip(ARMS, (0, -1), strict=True)}
    return compare(ARMS, [("before", "after")], seeds, metrics, **others)


def verdict(result):
    arm = result["arms"]["after"]
    word = judged(result, "before → after", SMALLEST, sign=-1)
    return CONTRADICTED if arm["pass@1 after"] <= arm["pass@1 before"] else word


def curve(result, when):
    return [result["arms"]["after"][f"pass@{k} {when}"] for k in KS]


def effect(result):
    both = "; ".join(f"{when} {', '.join(f'{y:.3f}' for y in curve(result, when))}" for when in ARMS)
    return f"{summarize(result, 'pass@256')}; pass@k for k = 1, 2, 4, ..., 256: {both}"


def draw(result):
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    for when, color in zip(ARMS, (GRAY, BLUE), strict=True):
        axes.plot(KS, curve(result, when), "o-", color=color, label=when)
    axes.set_xscale("log", base=2)
    axes.legend()
    panel(axes, "Search, before and after 40 steps of GRPO", "k", "pass@k on held-out problems")
    return figure
