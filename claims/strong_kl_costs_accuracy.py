"""A strong KL to the initial model (β = 0.5) costs accuracy within 30 steps, and without any the model learns.

Said by: DAPO, 2503.14476, Sec. 2.3 ("during training the long-CoT reasoning model, the model distribution can diverge
significantly from the initial model, thus this restriction is not necessary"); Dr. GRPO, 2503.20783, and Olmo 3,
2512.13961, use no KL either. GRPO, 2402.03300, uses β = 0.04.

Tested: grpo.py on sums for 30 steps of 64 responses with the k3 estimate in the loss and β = 0 (1e-9, so that the KL is
measured), 0.04 and 0.5; a fair trial (claims/fair.py).

Rule: by held-out accuracy, 95 % intervals of the differences from β = 0. Reproduced if β = 0.5 loses 0.05 or
more and the interval excludes 0, and training without the KL does not end below the base model; contradicted if the
interval excludes a loss of 0.05 at β = 0.5, or if training without the KL does end below it; a loss that is certain but
smaller is inconclusive. The KL reached in the last 5 steps (the k3 estimate) is reported.
"""

from statistics import mean

from claims import fair
from claims.court import CONTRADICTED

KIND = "runs"
SMALLEST = 0.05
WORLDS = ("sums",)
ARMS = {"β = 0": "grpo --kl-beta 1e-9", "β = 0.04": "grpo --kl-beta 0.04", "β = 0.5": "grpo --kl-beta 0.5"}


def compute(seeds):
    pairs = [("β = 0", "β = 0.04"), ("β = 0", "β = 0.5")]
    measured = {"kl": lambda t: t.mean("kl", 5), "base": lambda t: t.rows[0]["eval/avg"]}
    return fair.compute(ARMS, pairs, seeds, WORLDS, **measured)


def verdict(result):
    free = result["arms"]["β = 0, sums"]
    if mean(free["values"]) < free["base"]:
        return CONTRADICTED
    return fair.in_each_world(result, ("β = 0", "β = 0.5"), SMALLEST, sign=-1)["sums"]


def effect(result):
    kl = ", ".join(f"{arm['kl']:.3f}" for arm in result["arms"].values())
    return f"{fair.effect(result, {'sums': verdict(result)})}; KL reached {kl}"


def draw(result):
    return fair.draw(result, "The k3 estimate of the KL in the loss")
