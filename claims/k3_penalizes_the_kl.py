"""Adding the k3 estimate to the loss penalizes KL(π_θ ‖ π_ref).

Said by: DeepSeekMath, 2402.03300, Eq. 3 and 4 ("we estimate the KL divergence with the following unbiased estimator ...
which is guaranteed to be positive"), and methods that adopted it.

Tested: grpo.py's kl_penalty on two policies over 6 tokens, on-policy: the expected value against the exact KL, and the
expected gradient of the estimate as a loss against those of KL(π_θ ‖ π_ref) and KL(π_ref ‖ π_θ).

Rule: reproduced if the value and the gradient are those of KL(π_θ ‖ π_ref), to 1e-6 and to 1e-5 of its length (six
digits are stored); contradicted if either is not.
"""

import grpo
from claims.court import axes, decide
from tools.plots import BLUE, GRAY, ORANGE

import torch

KIND = "exact"
LOGITS, REFERENCE = (0.5, -0.3, 1.2, -1.0, 0.1, -0.6), (0.1, 0.4, 0.2, -0.2, -0.9, 0.6)


def compute():
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    logp, ref = logits.log_softmax(0), torch.tensor(REFERENCE, dtype=torch.float64).log_softmax(0)
    p, k3 = logp.exp(), grpo.kl_penalty(logp, ref)
    losses = {
        "k3 in the loss": (p.detach() * k3).sum(),  # the samples are fixed: no gradient through their probabilities
        "KL(π_θ ‖ π_ref)": (p * (logp - ref)).sum(),
        "KL(π_ref ‖ π_θ)": (ref.exp() * (ref - logp)).sum(),
    }
    return {
        "value": {name: loss.item() for name, loss in losses.items()},
        "gradient": {
            name: torch.autograd.grad(loss, logits, retain_graph=True)[0].tolist() for name, loss in losses.items()
        },
    }


def distance(result, name):
    """Relative distance between the gradient of k3 as a loss and another gradient."""
    ours, other = (torch.tensor(result["gradient"][key]) for key in ("k3 in the loss", name))
    return ((ours - other).norm() / other.norm()).item()


def verdict(result):
    bias = abs(result["value"]["k3 in the loss"] - result["value"]["KL(π_θ ‖ π_ref)"])
    return decide(bias < 1e-6 and distance(result, "KL(π_θ ‖ π_ref)") < 1e-5)


def effect(result):
    away = f"{distance(result, 'KL(π_θ ‖ π_ref)'):.0%}"
    return f"value unbiased; gradient that of KL(π_ref ‖ π_θ), {away} away from that of KL(π_θ ‖ π_ref)"


def draw(result):
    panel = axes("k3 as a loss has the gradient of the other KL", "token", "gradient on its logit")
    looks = ((-0.27, ORANGE), (0.27, GRAY), (0.0, BLUE))
    for (name, gradient), (shift, color) in zip(result["gradient"].items(), looks, strict=True):
        panel.bar([x + shift for x in range(len(gradient))], gradient, 0.27, color=color, label=name)
    panel.axhline(0, color="black", linewidth=0.8)
    panel.legend()
    return panel.figure
