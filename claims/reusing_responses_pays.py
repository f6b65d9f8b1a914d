"""Several passes over a rollout batch make better use of the responses than one.

Said by: PPO, 1707.06347, Abstract ("a novel objective function that enables multiple epochs of minibatch updates").
Papers on reasoning mostly make one pass.

Tested: grpo.py on sums (30 steps of 64 responses) and on search (40 steps) with one pass of four minibatches over each
rollout batch, which are 4 updates, and with four passes, which are 16; a fair trial (claims/fair.py).

Rule: by held-out accuracy after equal responses, 95 % intervals of the difference. Reproduced if four passes are better
by 0.05 or more and the interval excludes 0; contradicted if the interval excludes a gain of 0.05 and does not lie above
0; inconclusive if a gain is certain but smaller, or if the two worlds differ. Training accuracy in steps 6 to 10 is
reported.
"""

from claims import fair

KIND = "runs"
SMALLEST = 0.05
ARMS = {"one pass": "grpo", "four passes": "grpo --update-epochs 4"}
PAIR = ("one pass", "four passes")


def compute(seeds):
    return fair.compute(ARMS, [PAIR], seeds, early=lambda t: sum(t.series("accuracy")[5:10]) / 5)


def of_worlds(result):
    return fair.in_each_world(result, PAIR, SMALLEST)


def verdict(result):
    return fair.of_both(of_worlds(result))


def effect(result):
    early = ", ".join(f"{name} {arm['early']:.3f}" for name, arm in result["arms"].items())
    return f"{fair.effect(result, of_worlds(result))}; training accuracy in steps 6 to 10: {early}"


def draw(result):
    return fair.draw(result, "Passes over each rollout batch, at equal responses")
