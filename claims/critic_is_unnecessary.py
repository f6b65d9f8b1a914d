"""A learned critic is unnecessary: a group baseline does as well at equal responses.

Said by: GRPO, 2402.03300, drops PPO's critic to save memory; RLOO, 2402.14740, finds PPO's machinery unnecessary for
language models. VAPO, 2504.05118, disagrees: a well-trained critic is better.

Tested: grpo.py and ppo.py for 30 steps of 64 responses, four updates each. PPO's critic has the default learning rate,
3e-4, or 1e-3; the better mean of the two is compared, which favors PPO.

Rule: the claim is that nothing is lost. Contradicted if PPO is better by 0.03 of held-out accuracy or more and the 95 %
interval of the paired difference excludes 0; reproduced if the interval excludes that PPO is better by 0.03.
"""

from claims.runs import compare, draw_arms, judged_lossless, summarize

KIND = "runs"
SMALLEST = 0.03
ARMS = {"GRPO": "grpo", "PPO": "ppo", "PPO, critic 1e-3": "ppo --critic-lr 1e-3"}


def compute(seeds):
    return compare(ARMS, [("GRPO", name) for name in ARMS if name != "GRPO"], seeds)


def verdict(result):
    best = max(result["differences"], key=result["differences"].get)
    return judged_lossless(result, best, SMALLEST, sign=-1)


effect = summarize


def draw(result):
    return draw_arms(result, "A critic or a group baseline, at equal responses")
