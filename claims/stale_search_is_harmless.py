"""Rollouts 8 batches (32 updates) old do not hurt GRPO on search if its ratio is to the policy that sampled them.

Said by: slides and posts on asynchronous training ("in practice, this doesn't hurt until > 8 steps"); ScaleRL,
2510.13786, settles on PipelineRL with 8 steps. The same on sums is stale_rollouts_are_harmless.

Tested: grpo.py on search with fresh rollouts (40 steps), and with rollouts 8 batches old (48 steps, so that the delay
at the start does not count): uncorrected, where the ratio uses the learner's recomputed log-probs without TIS;
corrected, with the log-probs of the weights that sampled in the ratio; and with TIS, the default; a fair trial
(claims/fair.py).

Rule: by held-out accuracy, 95 % interval of the difference of the corrected arm from the fresh one. The claim is that
nothing is lost. Contradicted if it loses 0.05 or more and the interval excludes 0; reproduced if the interval excludes
a loss of 0.05; else inconclusive. The uncorrected arm and the one with TIS are reported.
"""

from claims import fair

KIND = "runs"
SMALLEST = 0.05
WORLDS = ("search",)
STALE = "grpo --staleness 8 --steps 48"
ARMS = {
    "fresh": "grpo",
    "uncorrected": f"{STALE} --tis-cap 0",
    "corrected": f"{STALE} --tis-cap 0 --ratio-anchor engine",
    "with TIS": STALE,
}
PAIR = ("fresh", "corrected")
REPORTED = [
    *(("fresh", arm) for arm in ("uncorrected", "with TIS")),
    *(("uncorrected", arm) for arm in ("corrected", "with TIS")),
]


def compute(seeds):
    return fair.compute(ARMS, [*REPORTED, PAIR], seeds, WORLDS, length=lambda t: t.mean("length", 10))


def of_worlds(result):
    return fair.in_each_world(result, PAIR, SMALLEST, lossless=True)


def verdict(result):
    return fair.of_both(of_worlds(result))


def effect(result):
    lengths = ", ".join(f"{name} {arm['length']:.0f}" for name, arm in result["arms"].items())
    return f"{fair.effect(result, of_worlds(result))}; tokens per response {lengths}"


def draw(result):
    return fair.draw(result, "Fresh rollouts, and rollouts that are 8 batches old")
