"""A learned critic is unnecessary: a group baseline does as well at equal responses.

Said by: GRPO, 2402.03300, drops PPO's critic to save memory; RLOO, 2402.14740, Abstract ("many components of PPO are
unnecessary in an RLHF context"). VAPO, 2504.05118, Sec. 1, disagrees: "value-model-based approaches possess a higher
performance ceiling if the challenges in training value models can be addressed".

Tested: grpo.py and ppo.py on sums (30 steps of 64 responses) and on search (40 steps), four updates each; a fair trial
(claims/fair.py). PPO is as by default: λ = 0.95, and a critic that learns at 3e-4, without VAPO's pretraining.

Rule: by held-out accuracy, 95 % intervals of the difference. The claim is that nothing is lost. Contradicted if PPO is
better by 0.05 or more and the interval excludes 0; reproduced if the interval excludes that PPO is better by 0.05;
inconclusive if the two worlds differ.
"""

from claims import fair

KIND = "runs"
SMALLEST = 0.05
ARMS = {"GRPO": "grpo", "PPO": "ppo"}
compute, of_worlds, verdict, effect = fair.between(ARMS, ("GRPO", "PPO"), SMALLEST, sign=-1, lossless=True)


def draw(result):
    return fair.draw(result, "A critic or a group baseline, at equal responses")
