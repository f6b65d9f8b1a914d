"""Averaging over the tokens of a group of 8 instead of responses removes GRPO's length bias.

Said by: DAPO, 2503.14476, Sec. 3.3 (a pattern "will be equally prompted or suppressed, regardless of the length of the
response in which it appears") and Eq. 8 and 12, whose printed objective averages over the tokens of a group, and many
write-ups, which call it as unbiased as Dr. GRPO. DAPO's code averages over the minibatch instead.

Tested: a policy that is correct at random (p = 1/2) and stops with probability 1/4 after each token, at the latest
after 12. Length and reward are independent, so the expected gradient on the logit of stopping after a correct response
should be 0. It is computed over all outcomes of P groups of G, with the advantages of grpo.py and the token weights of
grpo.py, dapo.py and dr_grpo.py. A positive gradient shortens correct responses and lengthens incorrect ones equally.

Rule: reproduced if the printed objective leaves less than 10 % of GRPO's bias at G = 8; else contradicted. What larger
groups and a mean over the minibatch leave is shown beside it; by the same rule G = 16, which DAPO uses, is enough.
"""

import dapo
import dr_grpo
import grpo
from claims.court import axes, decide, outcomes
from tools.plots import GREEN, ORANGE, RED
from tools.scripts import call

import numpy as np
import torch
from scipy.stats import binom

KIND = "exact"
L, STOP, P_RIGHT = 12, 0.25, 0.5
GROUPS, BATCHES = (2, 4, 8, 16, 64), (1, 2, 8, 32)


def bias(weight, G):
    """Expected gradient on the stop logit of correct responses.

    weight[own, others] is a token's weight in a response of `own` tokens, averaged with `others` other tokens.
    """
    length = np.arange(1, L + 1)  # (L,)
    chance = STOP * (1 - STOP) ** (length - 1)  # (L,)
    chance[-1] = (1 - STOP) ** (L - 1)  # cut off, or stopped at this token
    score = (1 - STOP) * (length < L) - STOP * (length - 1)  # Σ_t ∇log π with respect to the stop logit
    others = np.ones(1)  # probability of each sum of the others' lengths
    while len(others) < weight.shape[1]:
        others = np.convolve(others, np.r_[0, chance])
    rewards = outcomes(G)  # (G + 1, G)
    advantage = grpo.compute_advantages(rewards, grpo.Args())[:, 0].numpy()  # (G + 1,) for a correct response
    right = P_RIGHT * (binom.pmf(np.arange(G), G - 1, P_RIGHT) * advantage[1:]).sum()
    return G * right * (chance * score * (weight[1:] @ others)).sum()


def token_weight(script, tokens):
    """A token's weight in a minibatch of one response, by its number of tokens."""
    args = script.Args(max_response_tokens=L)
    return call(script.token_weights, mask=torch.ones(1, tokens), args=args)[0, 0].item()


def token_mean(P, G):
    most = (P * G - 1) * L
    of_total = np.array([0] + [token_weight(dapo, total) for total in range(1, most + L + 1)])
    return P * bias(of_total[np.add.outer(np.arange(L + 1), np.arange(most + 1))], G)


def response_mean(script, G):
    """A weight that does not depend on the other responses."""
    return bias(np.array([[0]] + [[token_weight(script, own) / G] for own in range(1, L + 1)]), G)


def compute():
    return {
        "grpo": {G: response_mean(grpo, G) for G in GROUPS},
        "token mean of a group": {G: token_mean(1, G) for G in GROUPS},
        "token mean of P groups of 8": {P: token_mean(P, 8) for P in BATCHES},
        "dr_grpo": {G: response_mean(dr_grpo, G) for G in GROUPS},
    }


def left(result, key="token mean of a group"):
    """Fraction of GRPO's bias that a mean over tokens leaves, by G, or by P for groups of 8."""
    return {n: bias / result["grpo"][n if key == "token mean of a group" else "8"] for n, bias in result[key].items()}


def verdict(result):
    return decide(left(result)["8"] < 0.1)


def effect(result):
    shares = ", ".join(f"{share:.0%} (G = {G})" for G, share in left(result).items())
    batch = f"{left(result, 'token mean of P groups of 8')['32']:.1%}"
    constant = max(result["dr_grpo"].values()) / result["grpo"]["8"]
    return f"bias left by the mean of a group: {shares}; of 32 groups of 8: {batch}; by a constant: {constant:.0%}"


def draw(result):
    title = "A mean over tokens leaves the less length bias the more responses it spans"
    panel = axes(title, "responses averaged over", "fraction of GRPO's length bias", xscale="log", ylim=(0, 1.05))
    group, batch = left(result), left(result, "token mean of P groups of 8")
    panel.axhline(1, color=RED, label="mean per response (GRPO)")
    panel.plot([int(G) for G in group], group.values(), "o-", color=ORANGE, label="token mean of one group of G")
    panel.plot(
        [8 * int(P) for P in batch], batch.values(), "s--", color="black", label="of P groups of 8 (DAPO's code)"
    )
    panel.axhline(0, color=GREEN, label="constant denominator (Dr. GRPO)")
    panel.set_xticks([2, 8, 32, 128], [2, 8, 32, 128])
    panel.minorticks_off()
    panel.legend(fontsize="small")
    return panel.figure
