"""Several passes over a rollout batch make better use of the responses, since a clip keeps them safe.

Said by: PPO, 1707.06347 (the clipped objective allows several epochs on the same data). Papers on reasoning
mostly make one pass.

Tested: grpo.py for 25 steps of 64 responses with 1 and with 16 updates from each batch (four passes of four
minibatches), at the same learning rate. How fast training accuracy rises in the first 10 steps is reported.

Rule: by held-out accuracy after equal responses, 95 % interval of the paired difference. Reproduced if 16 updates are
better than one by 0.05 or more and the interval excludes 0; contradicted if the interval excludes a gain of 0.05. Void
where less than 1 % is clipped.
"""

from claims.runs import REUSE, compare, draw_arms, judged, judged_by_clip, summarize

KIND = "runs"
SMALLEST = 0.05
ARMS = {"1 update": "grpo --num-minibatches 1 --steps 25", "16 updates": f"grpo {REUSE}"}


def compute(seeds):
    early = {"accuracy in steps 6 to 10": lambda t: sum(t.series("accuracy")[5:10]) / 5}
    return compare(ARMS, [("1 update", "16 updates")], seeds, **early)


def verdict(result):
    return judged_by_clip(result, judged(result, "1 update → 16 updates", SMALLEST))


def effect(result):
    early = ", ".join(f"{arm['accuracy in steps 6 to 10']:.3f}" for arm in result["arms"].values())
    return f"{summarize(result)}; training accuracy in steps 6 to 10: {early}"


def draw(result):
    return draw_arms(result, "Updates from each rollout batch, at equal responses")
