"""On sums, importance sampling recovers accuracy that stale rollouts lose.

Said by: slides on asynchronous training ("applying importance sampling also helps"); DPPO, 2602.04879, uses the
engine's probability in the ratio's denominator; AReaL, 2505.24298, keeps a recomputed ratio and weights it by
π_old / π_engine.

Tested: the runs of stale_rollouts_are_harmless, grpo.py on sums with fresh rollouts (30 steps), and with rollouts 8
batches old (38 steps): uncorrected; with the log-probs of the weights that sampled in the ratio and its clip
(corrected); with recomputed log-probs and truncated importance sampling (TIS); a fair trial (claims/fair.py).
stale_search_is_harmless reports the same differences on search.

Rule: by held-out accuracy, 95 % interval of the difference from the uncorrected arm. Reproduced if the corrected arm
gains 0.05 or more and its interval excludes 0; contradicted if the interval excludes a gain of 0.05; one that is
certain but smaller is inconclusive. What TIS gains is reported.
"""

from claims import fair
from claims.stale_rollouts_are_harmless import ARMS

KIND = "runs"
SMALLEST = 0.05
WORLDS = ("sums",)
REPORTED = [("uncorrected", "with TIS")]
compute, of_worlds, verdict, effect = fair.between(
    ARMS, ("uncorrected", "corrected"), SMALLEST, worlds=WORLDS, reported=REPORTED
)


def draw(result):
    return fair.draw(result, "Rollouts 8 batches old: what to divide by")
