"""With AdamW, a constant factor of the loss changes how fast a model learns.

Said by: write-ups on Dr. GRPO's division by L and on RLOO's G / (G - 1), as an effective learning rate.

Tested: 30 updates on a softmax over 6 answers, two of them correct, with dr_grpo.py's loss on one group of 8,
multiplied by 0.1, 1 and 10; with AdamW, as in every script, and with plain gradient descent. No gradient is clipped.

Rule: reproduced if with AdamW the probability of a correct answer after the updates differs by more than 0.01 between
the factors; else contradicted, for AdamW.
"""

import dr_grpo
from claims.court import axes, decide, loss_of
from tools.plots import BLUE, GREEN, ORANGE
from tools.scripts import call

import torch

KIND = "exact"
UPDATES, FACTORS, ANSWERS, RIGHT = 30, (0.1, 1.0, 10.0), (0, 1, 2, 3, 4, 5, 2, 3), 2
OPTIMIZERS = {
    "AdamW": lambda theta: torch.optim.AdamW([theta], lr=0.03, weight_decay=0.0),
    "SGD": lambda theta: torch.optim.SGD([theta], lr=0.3),
}


def path(optimizer, factor):
    """Probability of a correct answer after each update."""
    args, answers = dr_grpo.Args(max_response_tokens=1), torch.tensor(ANSWERS)
    advantages = dr_grpo.compute_advantages((answers < RIGHT).double()[None]).view(-1, 1)  # (G, 1)
    mask = torch.ones_like(advantages, dtype=torch.bool)
    theta = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    step, probabilities = OPTIMIZERS[optimizer](theta), []
    for _ in range(UPDATES):
        logp = theta.log_softmax(0)[answers][:, None]  # (G, 1)
        loss, _ = loss_of(dr_grpo, logp, advantages, args, mask=mask)
        (factor * call(dr_grpo.token_weights, mask=mask, args=args) * loss).sum().backward()
        step.step()
        step.zero_grad()
        probabilities.append(theta.softmax(0)[:RIGHT].sum().item())
    return probabilities


def compute():
    return {optimizer: {factor: path(optimizer, factor) for factor in FACTORS} for optimizer in OPTIMIZERS}


def ends(result, optimizer):
    return [probabilities[-1] for probabilities in result[optimizer].values()]


def verdict(result):
    return decide(max(ends(result, "AdamW")) - min(ends(result, "AdamW")) > 0.01)


def effect(result):
    parts = [f"{', '.join(f'{p:.3f}' for p in ends(result, name))} ({name})" for name in OPTIMIZERS]
    return f"correct answers after {UPDATES} updates with the loss times 0.1, 1, 10: " + "; ".join(parts)


def draw(result):
    panel = axes(
        "AdamW does not see a constant factor of the loss, SGD does", "update", "probability of a correct answer"
    )
    for name, line in (("AdamW", "-"), ("SGD", ":")):
        for (factor, probabilities), color in zip(result[name].items(), (BLUE, GREEN, ORANGE), strict=True):
            label = f"{name}, loss x {factor}" if name == "SGD" else "AdamW, all three" if factor == "10.0" else None
            panel.plot(range(1, UPDATES + 1), probabilities, color=color, linestyle=line, label=label)
    panel.set_ylim(top=1.25)
    panel.legend(ncols=2, fontsize="small", loc="upper center")
    return panel.figure
