"""On search, a ratio anchored on the engine is better than recomputed log-probs where the engine's numerics differ.

Said by: DPPO, 2602.04879, Sec. 5.2 ("The trust region must be defined with respect to the original behavior policy ...
Using a recomputed on-policy distribution as the anchor leads to instability"). The same on sums is
sampler_anchor_suits_a_quantized_sampler.

Tested: grpo.py on search for 40 steps of 64 responses with 4-bit weights in the engine: log-probs recomputed by the
learner, without and with TIS; ratio and clip with the engine's log-probs, which differ from the learner's before any
update; a fair trial (claims/fair.py).

Rule: by held-out accuracy, 95 % interval of the difference from recomputed log-probs without TIS. Reproduced if the
anchor gains 0.05 or more and the interval excludes 0; contradicted if the interval excludes such a gain and does not
lie above 0; one that is certain but smaller is inconclusive. What TIS gains is reported.
"""

from claims import fair
from claims.sampler_anchor_suits_a_quantized_sampler import ARMS, PAIR, REPORTED

KIND = "runs"
SMALLEST = 0.05
WORLDS = ("search",)
compute, of_worlds, verdict, effect = fair.between(ARMS, PAIR, SMALLEST, worlds=WORLDS, reported=REPORTED)


def draw(result):
    return fair.draw(result, "An engine with weights of 4 bits: what to divide by")
