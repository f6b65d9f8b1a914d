"""Groups of two responses give a noisier gradient than large groups, at equal responses.

Said by: write-ups on GRPO, after DeepSeekMath's G = 64 (2402.03300). Against it: 2510.00977, Abstract of version 1,
reports the belief ("It is commonly believed that GRPO necessitates a large group size to ensure stable training via
precise statistical estimation") and finds two enough.

Tested: a softmax over 16 answers, 4 of them correct with total probability p = 0.02, 0.1 and 0.5. The variance of the
gradient of 256 responses as 256 / G groups, relative to its squared mean, exactly, with the advantages of grpo.py and
rloo.py. The gain from more prompts per batch, if prompts differ, is not included; it would favor small groups.

Rule: reproduced if groups of 2 have at least 1.5 times the variance of groups of 64 with grpo.py, averaged over the
three p at an equal number of responses; else contradicted.
"""

import grpo
import rloo
from claims.court import axes, coefficients, decide, outcomes
from tools.plots import BLUE, GREEN, ORANGE
from tools.scripts import call

import torch
from scipy.stats import binom

KIND = "exact"
RESPONSES, ANSWERS, RIGHT = 256, 16, 4
GROUPS, CHANCES = (2, 4, 8, 16, 32, 64), (0.02, 0.1, 0.5)


def relative_variance(script, p, G):
    """Trace of the gradient's covariance over its squared mean, for a batch of responses in groups of G."""
    rewards = outcomes(G)  # (G + 1, G)
    advantages = call(script.compute_advantages, rewards=rewards, args=script.Args()).view(-1, 1)
    c = coefficients(script, torch.zeros_like(advantages), advantages, script.Args()).view(G + 1, G) / G
    chance = torch.tensor(binom.pmf(range(G + 1), G, p))  # (G + 1,)
    # Scores of correct and incorrect answers have the means u_r and u_w; an answer's deviation from its mean is noise.
    along = (c * torch.where(rewards > 0, 1 - p, -p)).sum(1)  # (G + 1,), along u_r - u_w
    gap = 1 / RIGHT + 1 / (ANSWERS - RIGHT)  # ‖u_r - u_w‖²
    own = torch.where(rewards > 0, 1 - 1 / RIGHT, 1 - 1 / (ANSWERS - RIGHT))  # (G + 1, G), its variance
    mean = (chance * along).sum()
    variance = gap * ((chance * along**2).sum() - mean**2) + (chance * (c**2 * own).sum(1)).sum()
    return (variance / (gap * mean**2) / (RESPONSES / G)).item()


def compute():
    return {
        name: {p: {G: relative_variance(script, p, G) for G in GROUPS} for p in CHANCES}
        for name, script in {"grpo": grpo, "rloo": rloo}.items()
    }


def excess(result, name, G="2"):
    """Variance with groups of G divided by that with groups of 64, by p."""
    return {p: of_p[G] / of_p["64"] for p, of_p in result[name].items()}


def verdict(result):
    return decide(sum(excess(result, "grpo").values()) / len(CHANCES) >= 1.5)


def effect(result):
    ratios = ", ".join(f"{ratio:.2f} (p = {p})" for p, ratio in excess(result, "grpo").items())
    of_8 = max(excess(result, "grpo", G="8").values())
    others = f"of 2 / 64 with rloo.py: at most {max(excess(result, 'rloo').values()):.2f}"
    return f"variance with groups of 2 / 64 at equal responses: {ratios}; of 8 / 64: at most {of_8:.2f}; {others}"


def draw(result):
    panel = axes(
        "At equal responses, groups of 2 are twice as noisy as groups of 64",
        "responses per group, G",
        "variance of the gradient / that with G = 64",
        xscale="log",
    )
    for p, color in zip(CHANCES, (BLUE, GREEN, ORANGE), strict=True):
        values = result["grpo"][str(p)]
        panel.plot(GROUPS, [v / values["64"] for v in values.values()], marker="o", color=color, label=f"p = {p}")
    panel.set_xticks(GROUPS, GROUPS)
    panel.minorticks_off()
    panel.legend()
    return panel.figure
