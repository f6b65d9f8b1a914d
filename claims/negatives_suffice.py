"""Penalizing incorrect responses suffices: without reinforcing correct ones, as much is learned.

Said by: "The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning", 2506.01347, Abstract (training with
only negative samples improves the base model "across the entire Pass@k spectrum (k up to 256), often matching or
surpassing PPO and GRPO").

Tested: grpo.py on sums (30 steps of 64 responses) and on search (40 steps): all advantages, only those below 0, only
those above 0 (claims/variant.py); a fair trial (claims/fair.py). The paper has rewards of 1 and -1 without a baseline.

Rule: by held-out accuracy, 95 % intervals of the difference of only negative ones from all. The claim is that nothing
is lost. Contradicted if they lose 0.05 or more and the interval excludes 0; reproduced if the interval excludes a loss
of 0.05; inconclusive if the two worlds differ. Only positive ones are reported, and so is pass@2.
"""

from claims import fair

KIND = "runs"
SMALLEST = 0.05
ARMS = {"all": "grpo", "incorrect": "grpo+incorrect", "correct": "grpo+correct"}
PAIRS = [("all", "incorrect"), ("all", "correct")]


def compute(seeds):
    return fair.compute(ARMS, PAIRS, seeds, **{"pass@2": lambda t: t.last("eval/pass@2")})


def of_worlds(result):
    return fair.in_each_world(result, PAIRS[0], SMALLEST, lossless=True)


def verdict(result):
    return fair.of_both(of_worlds(result))


def effect(result):
    pass_at_2 = ", ".join(f"{name} {arm['pass@2']:.3f}" for name, arm in result["arms"].items())
    return f"{fair.effect(result, of_worlds(result))}; pass@2 {pass_at_2}"


def draw(result):
    return fair.draw(result, "Learning from all responses, from incorrect ones, from correct ones")
