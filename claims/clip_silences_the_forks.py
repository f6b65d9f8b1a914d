"""PPO's clip silences the tokens at which a response forks, not the routine ones.

Said by: MiniMax-M1, 2506.13585, Sec. 3.1, about rare tokens such as "However", "Wait" and "Recheck", to motivate CISPO.

Tested: the embedded model after 16 updates of grpo.py on one batch of 32 prompts x 16 responses (4 minibatches, 4
passes). The fraction of tokens without gradient, in groups with signal: by the probability with which they were
sampled, at the first token of the response (which decides the style of answering), and in the fifth of the tokens with
the highest entropy.

Rule: reproduced if at least 1 % of the tokens are clipped in all (else void), and tokens below 0.2 are clipped at least
10 times as often as those above 0.9; else contradicted.
"""

import itertools

import grpo
from claims.court import VOID, axes, decide, embedded, loss_of, updates
from common.logprobs import batch_logps
from tools.plots import BLUE

import torch

KIND = "model"
EDGES = (0.0, 0.05, 0.2, 0.5, 0.9, 1.0)
BINS = tuple(f"{low:g} to {high:g}" for low, high in itertools.pairwise(EDGES))
P, G = 32, 16


def compute():
    args = grpo.Args(prompts_per_step=P, responses_per_prompt=G, num_minibatches=4, update_epochs=4)
    model, batch, correct = embedded(P, G, args)
    advantages = grpo.compute_advantages(correct, args).view(-1, 1).expand(batch.response_mask.shape)  # (B, T)
    old_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
    updates(model, batch, advantages, args)
    logp, _ = batch_logps(model, batch, args)
    _, metrics = loss_of(grpo, logp, advantages, args, old_logp, mask=batch.response_mask)
    clipped = (metrics["clip_pos"] + metrics["clip_neg"]).bool()
    counted = batch.response_mask & (advantages != 0)  # tokens of groups without signal never have a gradient
    p, first = old_logp.exp(), torch.arange(batch.response_mask.shape[1]) == 0
    undecided = entropy >= entropy[counted].quantile(0.8)
    ranges = {name: (p > low) & (p <= high) for name, (low, high) in zip(BINS, itertools.pairwise(EDGES), strict=True)}
    ranges |= {"all": p > 0, "below 0.2": p < 0.2, "above 0.9": p > 0.9}
    ranges |= {"first token": first.expand(p.shape), "top entropy": undecided, "other entropy": ~undecided}
    return {name: clipped[counted & rows].float().mean().item() for name, rows in ranges.items()}


def verdict(result):
    if result["all"] < 0.01:
        return VOID
    return decide(result["below 0.2"] >= 10 * result["above 0.9"])


def effect(result):
    keys = ("all", "below 0.2", *BINS[2:4], "above 0.9", "first token", "top entropy", "other entropy")
    return "clipped after 16 updates: " + ", ".join(f"{result[key]:.1%} ({key})" for key in keys)


def draw(result):
    panel = axes(
        "After 16 updates the clip has silenced undecided tokens, and hardly any other",
        "probability with which the token was sampled",
        "fraction of tokens without gradient",
    )
    names = [*BINS, "first token"]
    panel.bar(names, [result[name] for name in names], color=BLUE, width=0.7, label="one batch after 16 updates")
    panel.legend()
    return panel.figure
