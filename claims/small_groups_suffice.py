"""Groups of two responses learn as well as large ones at equal responses.

Said by: "It Takes Two", 2510.00977 (2-GRPO against GRPO with 16 responses). DeepSeekMath, 2402.03300, uses 64 responses
per prompt, and write-ups ask for many to keep the gradient stable.

Tested: grpo.py for 30 steps of 64 responses, as 32 prompts with 2, 8 with 8, and 2 with 32 responses; two updates each,
because two prompts can be split into only two minibatches.

Rule: the claim is that nothing is lost. Contradicted if groups of 2 lose 0.05 of held-out accuracy or more against the
better of 8 and 32 and the 95 % interval of the paired difference excludes 0; reproduced if the interval excludes a loss
of 0.05; else inconclusive.
"""

from claims.runs import compare, draw_arms, judged_lossless, summarize

KIND = "runs"
SMALLEST = 0.05
ARMS = {
    f"{G} responses": f"grpo --num-minibatches 2 --prompts-per-step {64 // G} --responses-per-prompt {G}"
    for G in (2, 8, 32)
}


def compute(seeds):
    return compare(ARMS, [("8 responses", "2 responses"), ("32 responses", "2 responses")], seeds)


def verdict(result):
    against_best = min(result["differences"], key=result["differences"].get)
    return judged_lossless(result, against_best, SMALLEST)


effect = summarize


def draw(result):
    return draw_arms(result, "64 responses a step, in groups of 2, 8 and 32")
