"""It suffices to learn from the fifth of the tokens with the highest entropy.

Said by: "Beyond the 80/20 Rule", 2506.01939, Abstract ("utilizing only 20% of the tokens while maintaining performance
comparable to full-gradient updates on the Qwen3-8B base model", and better on larger ones).

Tested: methods/forking_tokens.py on sums (30 steps of 64 responses) and on search (40 steps), with a fifth of the
tokens and with all of them; a fair trial (claims/fair.py).

Rule: by held-out accuracy, 95 % intervals of the difference from all tokens. The claim is that nothing is lost.
Contradicted if the fifth loses 0.05 or more and the interval excludes 0; reproduced if the interval excludes a loss of
0.05; inconclusive if the two worlds differ.
"""

from claims import fair

KIND = "runs"
SMALLEST = 0.05
ARMS = {
    "all tokens": "forking_tokens --top-fraction 1",
    "a fifth": "forking_tokens --top-fraction 0.2",
}
compute, of_worlds, verdict, effect = fair.between(ARMS, ("all tokens", "a fifth"), SMALLEST, lossless=True)


def draw(result):
    return fair.draw(result, "Learning from all tokens and from the fifth with the highest entropy")
