"""Rollouts that are 8 rollout batches (16 updates) old do not hurt, even where nothing corrects for it.

Said by: slides and posts on asynchronous training ("in practice, this doesn't hurt until > 8 steps"); ScaleRL,
2510.13786, settles on PipelineRL with 8 steps.

Tested: grpo.py with fresh rollouts and with rollouts 8 batches old (two updates from each, learning rate 1.5e-4),
uncorrected: the ratio uses the learner's recomputed log-probs, without TIS. The stale arm has 8 more steps, so that the
delay at the start does not count against it.

Rule: the claim is that nothing is lost. Contradicted if the stale arm loses 0.05 of held-out accuracy or more and the
95 % interval of the paired difference excludes 0; reproduced if the interval excludes a loss of 0.05; else
inconclusive.
"""

from claims.runs import STALE, compare, draw_arms, judged_lossless, summarize

KIND = "runs"
SMALLEST = 0.05
ARMS = {
    "fresh": "grpo --lr 1.5e-4 --num-minibatches 2 --steps 40",
    "8 batches old": f"grpo {STALE} --tis-cap 0",
}


def compute(seeds):
    return compare(ARMS, [("fresh", "8 batches old")], seeds)


def verdict(result):
    return judged_lossless(result, "fresh → 8 batches old", SMALLEST)


effect = summarize


def draw(result):
    return draw_arms(result, "Rollouts 8 batches old, uncorrected, beside fresh ones")
