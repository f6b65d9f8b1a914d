"""Restraining the few tokens with the largest covariance keeps the entropy up, at no loss of accuracy.

Said by: 2505.22617, Abstract (Clip-Cov and KL-Cov "encourage exploration, thus helping policy escape entropy collapse
and achieve better downstream performance") and Sec. 4.

Tested: grpo.py with the token mean, methods/clip_cov.py and methods/kl_cov.py for 30 steps of 64 responses, at their
default settings (as published, except that Clip-Cov uses KL-Cov's fraction of the tokens). Mean entropy over the last
10 steps; held-out accuracy is reported and is part of the rule. Both replace PPO's clip, as published; the runs without
control use the clip.

Rule: by KL-Cov, the stronger of the two in the paper, on paired seeds. Reproduced if its entropy is higher than without
control by a tenth or more, the 95 % interval excludes 0, and the interval of the accuracies excludes a loss of 0.03;
contradicted if the interval of the entropies excludes a tenth, or accuracy is lower by 0.03 or more and its interval
excludes 0.

Not testable here: both act on 2 tokens in 1,000, of responses that have 40 tokens, and the four updates from each batch
are nearly on-policy.
"""

import statistics

from claims.court import judge_all
from claims.runs import compare, draw_arms, judged, judged_lossless, summarize

KIND = "runs"
SMALLEST = "a tenth"
ARMS = {
    "no control": "grpo+dapo.token_weights",
    "Clip-Cov": "clip_cov",
    "KL-Cov": "kl_cov",
}
PAIR = "no control → KL-Cov"


def compute(seeds):
    pairs = [("no control", name) for name in ("Clip-Cov", "KL-Cov")]
    entropies = compare(ARMS, pairs, seeds, lambda t: t.mean("entropy", 10), "entropy")
    return entropies | {"accuracy": compare(ARMS, pairs, seeds)}


def verdict(result):
    tenth = statistics.mean(result["arms"]["no control"]["values"]) / 10
    return judge_all(judged(result, PAIR, smallest=tenth), judged_lossless(result["accuracy"], PAIR, smallest=0.03))


def effect(result):
    return f"{summarize(result, 'entropy')}; {summarize(result['accuracy'])}"


def draw(result):
    return draw_arms(result, "Control by covariance: entropy", "entropy (nats)", "entropy, last 10 steps (nats)")
