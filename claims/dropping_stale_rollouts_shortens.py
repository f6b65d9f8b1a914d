"""Throwing away rollouts that are too old makes responses shorter, since long ones take the longest.

Said by: a pull request of tinker-cookbook (822, 2026) on asynchronous training that discards rollouts beyond a limit
of staleness: "the trained data distribution is silently biased toward fast-completing problems".

Tested: a policy with one logit, that of ending the response at each of T = 8 tokens, so a response has a length and is
correct or not. Groups of G = 3; one is thrown away if any response has more than 4 tokens. The expected gradient of
that logit over all 4,096 groups, with the advantages of dr_grpo.py, which have no bias by length of their own, and of
reinforce.py without a baseline. All lengths are correct equally often, or each token adds to the chance.

Rule: the claim is about the expected gradient of the logit that ends a response, not about what is left. Reproduced if
throwing away raises it by more than 1e-12 in all four cases, contradicted if in none, else inconclusive.
"""

import dr_grpo
import reinforce
from claims.court import CONTRADICTED, INCONCLUSIVE, REPRODUCED, axes
from tools.plots import BLUE, ORANGE
from tools.scripts import call

import torch

KIND = "exact"
T, G, LIMIT, STOP = 8, 3, 4, 0.25
SCRIPTS = {"dr_grpo": (dr_grpo, {}), "reinforce, no baseline": (reinforce, {"baseline": "none"})}
CHANCES = {"alike": (0.5, 0.0), "longer is better": (0.0, 1 / (T + 1))}  # of a correct response: fixed, and per token


def compute():
    length = torch.arange(1, T + 1, dtype=torch.float64)
    p = STOP * (1 - STOP) ** (length - 1)  # (T,)
    p[-1] = 1 - p[:-1].sum()  # the last token ends what has not ended
    score = (length < T) * (1 - STOP) - (length - 1) * STOP  # (T,) d log p / d logit
    outcome = torch.cartesian_prod(torch.arange(T), torch.arange(2))  # (2 T, 2): length, correct
    groups = torch.cartesian_prod(*[torch.arange(2 * T)] * G)  # ((2 T)^G, G)
    lengths, rewards = outcome[groups, 0], outcome[groups, 1].double()  # ((2 T)^G, G), the same
    kept = (length[lengths] <= LIMIT).all(1)  # ((2 T)^G,)
    result = {"mean length": {}, "pull": {}}
    for where, (fixed, per_token) in CHANCES.items():
        correct = fixed + per_token * length[lengths]  # ((2 T)^G, G)
        weight = (p[lengths] * torch.where(rewards > 0, correct, 1 - correct)).prod(1)  # ((2 T)^G,)
        for name, (script, settings) in SCRIPTS.items():
            args = script.Args(**settings)
            A = call(script.compute_advantages, rewards=rewards, ema=0.0, args=args).view(-1, G)  # ((2 T)^G, G)
            gradient = (A * score[lengths]).mean(1)  # ((2 T)^G,)
            result["pull"][f"{name}, {where}"] = {
                "all": (weight * gradient).sum().item(),
                "kept": (weight * gradient)[kept].sum().item() / weight[kept].sum().item(),
            }
        mean = weight * length[lengths].mean(1)  # ((2 T)^G,)
        result["mean length"][where] = {
            "all": mean.sum().item(),
            "kept": (mean[kept].sum() / weight[kept].sum()).item(),
        }
    return result


def verdict(result):
    shorter = [pull["kept"] - pull["all"] > 1e-12 for pull in result["pull"].values()]
    return REPRODUCED if all(shorter) else INCONCLUSIVE if any(shorter) else CONTRADICTED


def effect(result):
    pulls = [f"{name} {pull['all']:+.3f}, {pull['kept']:+.3f}" for name, pull in result["pull"].items()]
    mean = result["mean length"]["alike"]
    return (
        f"gradient of the logit that ends a response, by all and by those kept: {'; '.join(pulls)}; "
        f"their mean length {mean['all']:.2f}, {mean['kept']:.2f}"
    )


def draw(result):
    title = "What rollouts thrown away for their age do to the gradient"
    panel = axes(title, "", "gradient of the logit that ends a response")
    for x, (key, color) in enumerate((("all", BLUE), ("kept", ORANGE))):
        places = [i + 0.35 * x for i in range(len(result["pull"]))]
        panel.bar(places, [pull[key] for pull in result["pull"].values()], width=0.33, color=color, label=key)
    panel.set_xticks([i + 0.17 for i in range(len(result["pull"]))], [k.replace(", ", "\n") for k in result["pull"]])
    panel.axhline(0, color="black", linewidth=0.8)
    panel.legend()
    return panel.figure
