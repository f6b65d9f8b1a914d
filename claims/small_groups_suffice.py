"""Groups of two responses learn as well as groups of eight at equal responses.

Said by: "It Takes Two", 2510.00977, Abstract of version 1 (2-GRPO "achieves performance on par with 16-GRPO, despite
using only 1/8 of the rollouts"). DeepSeekMath, 2402.03300, uses 64 responses per prompt, and write-ups ask for many to
keep the gradient stable.

Tested: grpo.py on sums (30 steps of 64 responses) and on search (40 steps), as 8 prompts with 8 responses and as 32
prompts with 2; a fair trial (claims/fair.py).

Rule: by held-out accuracy, 95 % intervals of the difference. The claim is that nothing is lost. Contradicted if groups
of two lose 0.05 or more and the interval excludes 0; reproduced if the interval excludes a loss of 0.05; inconclusive
if the two worlds differ.
"""

from claims import fair

KIND = "runs"
SMALLEST = 0.05
ARMS = {"8 responses": "grpo", "2 responses": "grpo --prompts-per-step 32 --responses-per-prompt 2"}
compute, of_worlds, verdict, effect = fair.between(ARMS, ("8 responses", "2 responses"), SMALLEST, lossless=True)


def draw(result):
    return fair.draw(result, "64 responses a step, in groups of 8 and of 2")
