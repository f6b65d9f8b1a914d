"""The KL estimate k1 as a term of the loss keeps the policy near the initial model.

Said by: verl's documentation of GRPO, which offers the estimates as alternatives: "kl_loss_type: Support kl(k1), abs,
mse(k2), low_var_kl(k3) and full." On-policy, the expected gradient of k1 is 0, since the score has mean 0 (the first of
several updates; later ones are weighted by no ratio).

Tested: grpo.py for 30 steps with β = 0 (1e-9, so that the KL is measured), and with β = 0.5 on k1 and on k3 in the
loss. Compared is the KL to the initial model per token, as the mean over the last 5 steps of the estimate in use. As
values on on-policy responses, both are unbiased.

Rule: reproduced if k1 lowers the KL by a quarter of its mean without a penalty or more, and the 95 % interval of the
paired difference excludes 0; contradicted if the interval excludes such an effect; one that is certain but smaller is
inconclusive.
"""

from claims.runs import compare, draw_arms, judged, summarize

KIND = "runs"
SMALLEST = "a quarter"
ARMS = {"β = 0": "grpo --kl-beta 1e-9", "k1, β = 0.5": "grpo+k1 --kl-beta 0.5", "k3, β = 0.5": "grpo --kl-beta 0.5"}


def compute(seeds):
    return compare(ARMS, [("β = 0", name) for name in ARMS if name != "β = 0"], seeds, lambda t: t.mean("kl", 5))


def verdict(result):
    free = result["arms"]["β = 0"]["values"]
    return judged(result, "β = 0 → k1, β = 0.5", smallest=sum(free) / len(free) / 4, sign=-1)


def effect(result):
    return summarize(result, "KL to the base, nats per token")


def draw(result):
    return draw_arms(result, "A KL in the loss: k1 and k3", metric="KL to the base (nats per token)")
