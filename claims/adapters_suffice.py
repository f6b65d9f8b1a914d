"""Low-rank adapters learn as much as all weights do, even at rank 1.

Said by: "LoRA Without Regret", Thinking Machines (2025): in reinforcement learning adapters match full training, even
those of rank 1, at about ten times its learning rate.

Tested: grpo.py on sums (30 steps of 64 responses) and on search (40 steps): all weights, and adapters of rank 1 on all
layers; a fair trial (claims/fair.py).

Rule: by held-out accuracy, 95 % intervals of the difference of rank 1 from all weights. The claim is that nothing is
lost. Contradicted if rank 1 loses 0.05 or more and the interval excludes 0; reproduced if the interval excludes a loss
of 0.05; inconclusive if the two worlds differ.
"""

from claims import fair

KIND = "runs"
SMALLEST = 0.05
ARMS = {"all weights": "grpo", "rank 1": "grpo --lora-rank 1"}
compute, of_worlds, verdict, effect = fair.between(ARMS, ("all weights", "rank 1"), SMALLEST, lossless=True)


def draw(result):
    return fair.draw(result, "GRPO with all weights and with low-rank adapters")
