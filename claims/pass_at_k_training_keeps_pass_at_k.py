"""Pass@k Training reaches a higher pass@k than GRPO at the same pass@1.

Said by: Pass@k Training, 2508.10751, Abstract ("we first use Pass@k as the reward to train the policy model [...] and
observe the improvement on its exploration ability").

Tested: as maxrl_keeps_pass_at_k, on 12 other random problems: 60 prompts compete for the weights of a policy, which
climbs Σ_x w(p_x) ∇p_x until the mean pass@1 is 0.5. w(p) is the exact expected weight of methods/pass_at_k.py with
k = 2, its default, and k = 4, and of grpo.py, for groups of 8. A few other problems had shown a gain before.

Rule: on the paired difference in pass@64 between k = 2 and grpo.py, with a 95 % interval over the problems: reproduced
if it is above 0 and at least 0.01; contradicted if the interval excludes a gain of 0.01. k = 4 is reported.
"""

import grpo
from claims.court import axes, judge, prompt_weight
from claims.maxrl_keeps_pass_at_k import GRID, KS, problems, train
from methods import pass_at_k
from tools.plots import BLUE, GRAY, GREEN
from tools.stats import interval

KIND = "exact"
ARMS = {"grpo": (grpo, {}), "k = 2": (pass_at_k, {"k": 2}), "k = 4": (pass_at_k, {"k": 4})}


def compute():
    features, right, bias = problems(1)
    pass_at = {}
    for arm, (script, settings) in ARMS.items():
        p, _ = train(features, right, bias, [prompt_weight(script, p, 8, **settings) for p in GRID])
        pass_at[arm] = {k: (1 - (1 - p) ** k).mean(1) for k in KS}
    return {
        "pass@k": {arm: {k: x.mean().item() for k, x in of_arm.items()} for arm, of_arm in pass_at.items()},
        "gain": {
            arm: interval((of_arm[64] - pass_at["grpo"][64]).tolist())
            for arm, of_arm in pass_at.items()
            if arm != "grpo"
        },
    }


def verdict(result):
    return judge(*result["gain"]["k = 2"], smallest=0.01)


def effect(result):
    passes = ", ".join(f"{arm} {of_arm['64']:.3f}" for arm, of_arm in result["pass@k"].items())
    gains = ", ".join(f"{arm} {mean:+.3f} ± {half:.3f}" for arm, (mean, half) in result["gain"].items())
    return f"pass@64 at pass@1 = 0.5: {passes}; gain over grpo: {gains}"


def draw(result):
    panel = axes("At the same pass@1, Pass@k Training keeps more prompts solvable", "k", "pass@k", xscale="log")
    for arm, color in zip(ARMS, (GRAY, BLUE, GREEN), strict=True):
        label = "grpo.py" if arm == "grpo" else f"pass_at_k.py, {arm}"
        panel.plot(KS, result["pass@k"][arm].values(), marker="o", color=color, label=label)
    panel.set_xticks(KS, KS)
    panel.minorticks_off()
    panel.legend()
    return panel.figure
