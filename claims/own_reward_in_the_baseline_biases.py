"""A baseline that holds the response's own reward, as GRPO's group mean does, biases the gradient.

Said by: write-ups that compare GRPO with RLOO, 2402.14740, Sec. 2.3, whose baseline is the mean of the others.
Dr. GRPO, 2503.20783, App. A, gives the factor (G - 1) / G.

Tested: a softmax over 4 answers with rewards 1, 1/2, 0 and 0. The expected gradient over all groups of G = 2 to 6, with
the advantages of rloo.py and dr_grpo.py, against the true gradient.

Rule: a bias is worth the name if it turns the gradient: reproduced if the angle to the true gradient exceeds 1° with
the group mean at any G, contradicted if it does not. A factor alone is a learning rate.
"""

import dr_grpo
import rloo
from claims.court import axes, coefficients, decide, tree
from tools.plots import BLUE, GREEN
from tools.scripts import call

import torch

KIND = "exact"
GROUPS = (2, 3, 4, 5, 6)
LOGITS, REWARDS = (0.3, -0.2, 0.8, -0.9), (1.0, 0.5, 0.0, 0.0)


def compute():
    reward = torch.tensor(REWARDS, dtype=torch.float64)
    _, logp, scores = tree(torch.tensor([LOGITS], dtype=torch.float64), 1)  # (V, 1), (V, 1, V)
    p = logp.exp()[:, 0]  # (V,)
    true = (p[:, None] * reward[:, None] * scores[:, 0]).sum(0)  # (V,)
    result = {"length": {}, "angle": {}}
    for name, script in {"group mean": dr_grpo, "mean of the others": rloo}.items():
        of_size = {}
        for G in GROUPS:
            groups = torch.cartesian_prod(*[torch.arange(len(p))] * G)  # (V^G, G)
            advantages = call(script.compute_advantages, rewards=reward[groups], args=script.Args()).view(-1, 1)
            c = coefficients(script, logp[groups].view(-1, 1), advantages, script.Args()).view(groups.shape)
            gradient = (p[groups].prod(1)[:, None] * (c[..., None] * scores[groups, 0]).mean(1)).sum(0)  # (V,)
            of_size[G] = gradient
        result["length"][name] = {G: (g.norm() / true.norm()).item() for G, g in of_size.items()}
        cosines = {G: torch.cosine_similarity(g, true, dim=0).clamp(max=1) for G, g in of_size.items()}
        result["angle"][name] = {G: cosine.arccos().rad2deg().item() for G, cosine in cosines.items()}
    return result


def verdict(result):
    return decide(max(result["angle"]["group mean"].values()) > 1)


def effect(result):
    at_2, at_6 = (result["length"]["group mean"][G] for G in ("2", "6"))
    angle = max(result["angle"]["group mean"].values())
    return f"angle at most {angle:.4f}°; length (G - 1) / G of the true one: {at_2:.3f} at G = 2, {at_6:.3f} at 6"


def draw(result):
    panel = axes(
        "The group mean shortens the expected gradient and does not turn it",
        "responses per group, G",
        "length of the expected gradient / true",
        ylim=(0, 1.1),
    )
    for (name, lengths), color in zip(result["length"].items(), (BLUE, GREEN), strict=True):
        panel.plot(GROUPS, lengths.values(), marker="o", color=color, label=name)
    panel.plot(GROUPS, [(G - 1) / G for G in GROUPS], color="black", linestyle=":", label="(G - 1) / G")
    panel.set_xticks(GROUPS, GROUPS)
    panel.legend(loc="lower right")
    return panel.figure
