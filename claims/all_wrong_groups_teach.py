"""A baseline across prompts makes groups without a correct response useful: they get a gradient direction.

Said by: SPO, 2509.13232, Abstract: "frequent degenerate groups erase learning signals", while a value tracker and
normalization over the batch provide "a stable, low-variance learning signal for every sample".

Tested: two prompts with two responses each: one with four answers, all incorrect, and one that is solved half of the
time. The baseline is the batch mean of reinforce.py. We compute the expected gradient on the unsolvable prompt's logits
over all outcomes, its size on a single outcome, and the mean change of its answers' entropy by a step of length 1.

Rule: reproduced if the expected gradient has at least 1 % of the root mean square length of a single one; else
contradicted.
"""

import reinforce
from claims.court import axes, coefficients, decide, tree
from tools.plots import BLUE, ORANGE

import torch

KIND = "exact"
LOGITS, G, STEP = (0.4, -0.3, 1.0, -0.8), 2, 1.0


def compute():
    logits = torch.tensor(LOGITS, dtype=torch.float64)
    _, logp, scores = tree(logits[None], 1)  # (V, 1), (V, 1, V)
    p, logp = logp.exp()[:, 0], logp[:, 0]
    args, gradients, chances = reinforce.Args(), [], []
    for answers in torch.cartesian_prod(torch.arange(len(p)), torch.arange(len(p))):  # to the unsolvable prompt
        for solved in torch.cartesian_prod(torch.arange(2), torch.arange(2)):  # to the other, each with probability 1/2
            rewards = torch.stack([torch.zeros(G), solved]).double()  # (P, G)
            advantages = reinforce.compute_advantages(rewards, 0.0, args)[0][:, None]  # (G, 1)
            c = coefficients(reinforce, logp[answers][:, None], advantages, args)  # (G, 1)
            gradients.append((c * scores[answers, 0]).sum(0) / rewards.numel())
            chances.append(p[answers].prod() / 4)
    gradients, chances = torch.stack(gradients), torch.stack(chances)  # (N, V), (N,)
    updated = (logits + STEP * torch.nn.functional.normalize(gradients)).log_softmax(1)  # (N, V)
    before, after = -(p * logp).sum(), -(updated.exp() * updated).sum(1)
    return {
        "length of the expected gradient": (chances[:, None] * gradients).sum(0).norm().item(),
        "root mean square length": (chances * gradients.pow(2).sum(1)).sum().sqrt().item(),
        "expected gradient": (chances[:, None] * gradients).sum(0).tolist(),
        "one gradient": gradients[1].tolist(),
        "entropy before": before.item(),
        "expected entropy after": (chances * after).sum().item(),
    }


def verdict(result):
    return decide(result["length of the expected gradient"] >= 0.01 * result["root mean square length"])


def effect(result):
    change = result["expected entropy after"] - result["entropy before"]
    expected, noise = result["length of the expected gradient"], result["root mean square length"]
    entropy = f"a step of length {STEP:g} changes the entropy by {change:+.3f} nats on average"
    return f"expected gradient {expected:.3f}, noise {noise:.3f}; {entropy}"


def draw(result):
    panel = axes(
        "All-incorrect group: every sample pushes, the pushes cancel",
        "answer, all of them incorrect",
        "gradient on its logit",
    )
    x = torch.arange(len(LOGITS))
    panel.bar(x - 0.2, result["one gradient"], 0.4, color=ORANGE, label="of one outcome (first two answers sampled)")
    panel.bar(x + 0.2, result["expected gradient"], 0.4, color=BLUE, label="expected: 0")
    panel.axhline(0, color="black", linewidth=0.8)
    panel.set_xticks(x, x.tolist())
    panel.legend()
    return panel.figure
