"""Dividing by the group's standard deviation gives nearly solved and nearly unsolved prompts more weight.

Said by: Dr. GRPO, 2503.20783, Sec. 3.1, as "question-level difficulty bias"; MaxRL, 2602.02710, and many write-ups,
often with the weight 1/√(p (1 - p)) or only for nearly solved prompts. Dr. GRPO's App. C removes only the division from
GRPO (Qwen2.5-1.5B, 3 seeds) and finds a better score.

Tested: the expected gradient of a prompt that is solved with probability p is w(p) ∇p. w is computed with grpo.py's
functions, on-policy, over all groups of G responses. For rloo.py w is 1 at every p.

Rule: reproduced if a prompt solved in 1 % of the cases, and one solved in 99 %, weigh at least 1.2 times as much as one
solved in half of them, at G = 8, the smallest of the usual group sizes, and at G = 64. Else contradicted.
"""

import grpo
import rloo
from claims.court import axes, decide, prompt_weight
from tools.plots import BLUE, GRAY, GREEN, ORANGE, RED

KIND = "exact"
GROUPS = (2, 3, 4, 8, 16, 64)
CHANCES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)


def compute():
    weights = {G: [prompt_weight(grpo, p, G) for p in CHANCES] for G in GROUPS}
    half = CHANCES.index(0.5)
    return {
        "chances": CHANCES,
        "relative": {G: [w / of_group[half] for w in of_group] for G, of_group in weights.items()},
        "rloo": [prompt_weight(rloo, p, 8) for p in CHANCES],
    }


def verdict(result):
    return decide(min(result["relative"][G][end] for G in ("8", "64") for end in (0, -1)) >= 1.2)


def effect(result):
    of_grpo = ", ".join(f"{w[0]:.2f} (G = {G})" for G, w in result["relative"].items())
    return f"w(0.01) / w(0.5) = {of_grpo}; p = 0.99 alike; rloo.py {result['rloo'][0]:.2f}"


def draw(result):
    panel = axes(
        "GRPO: rare and near-certain prompts weigh more only in large groups",
        "chance p that a response is correct",
        "weight of ∇p, relative to p = 1/2",
        yscale="log",
    )
    p = [float(x) for x in result["chances"]]
    for G, color in zip(("64", "16", "8", "4", "2"), (RED, ORANGE, GREEN, BLUE, GRAY), strict=True):
        panel.plot(p, result["relative"][G], color=color, label=f"G = {G}")
    panel.plot(p, [(x * (1 - x)) ** -0.5 / 2 for x in p], color="black", linestyle=":", label="1/√(p (1-p)), G → ∞")
    panel.set_yticks([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    panel.minorticks_off()
    panel.legend()
    return panel.figure
