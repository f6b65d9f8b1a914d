"""PPO with γ = λ = 1 is REINFORCE with a learned baseline.

Said by: write-ups and lecture slides; it follows from 1506.02438, Eq. 16.

Tested: ppo.py's advantages, not whitened, on 100 random responses of up to 12 tokens with a reward at the last token
and random values, and the factor of ∇log π in its loss at a ratio of 1, against reinforce.py's with the value as its
baseline.

Rule: reproduced if the two differ by less than 1e-9 on every token with γ = λ = 1; else contradicted. λ = 0.95, the
default, is shown beside it.
"""

import ppo
import reinforce
from claims.court import axes, coefficients, decide
from tools.plots import BLUE, ORANGE

import torch

KIND = "exact"
N, T = 100, 12
LAMBDAS = (0.0, 0.5, 0.8, 0.9, 0.95, 1.0)


def compute():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, T + 1, (N, 1), generator=generator)
    mask, last = torch.arange(T) < lengths, torch.arange(T) == lengths - 1  # (B, T)
    reward = torch.randint(2, (N, 1), generator=generator).double()
    values = torch.rand(N, T, dtype=torch.float64, generator=generator) * mask  # (B, T)
    logp = -torch.rand(N, T, dtype=torch.float64, generator=generator)
    baseline_args = reinforce.Args(baseline="ema")
    expected = coefficients(reinforce, logp, reinforce.compute_advantages(reward, values, baseline_args), baseline_args)
    result = {}
    for gae_lambda in LAMBDAS:
        args = ppo.Args(gamma=1.0, gae_lambda=gae_lambda)
        advantages, _ = ppo.compute_advantages(reward * last, values, mask, args)
        difference = (coefficients(ppo, logp, advantages, args) - expected)[mask].abs()
        result[gae_lambda] = {"mean": difference.mean().item(), "largest": difference.max().item()}
    return result


def verdict(result):
    return decide(result["1.0"]["largest"] < 1e-9)


def effect(result):
    return f"equal with λ = 1; with λ = 0.95 a token's weight differs by {result['0.95']['mean']:.2f} in the mean"


def draw(result):
    panel = axes("Only at λ = 1 PPO's advantage is R - V", "λ", "|A - (R - V)| of a token, with random values")
    for key, color in (("largest", ORANGE), ("mean", BLUE)):
        panel.plot(LAMBDAS, [of_lambda[key] for of_lambda in result.values()], marker="o", color=color, label=key)
    panel.legend()
    return panel.figure
