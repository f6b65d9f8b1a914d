"""The ratio of a rare token is noisy even when nothing has been trained, while its change in probability is not.

Said by: DPPO, 2602.04879, Abstract ("updates to low-probability tokens are aggressively over-penalized, while
potentially catastrophic shifts in high-probability tokens are under-constrained"), for a bound on the divergence.

Tested: 1,024 responses of the embedded model, scored in fp32 and in bf16, by the probability of the token: mean |log
ratio| and mean |Δp|.

Rule: reproduced if tokens below 0.05 have at least 10 times the mean |log ratio| of those above 0.9, and at most twice
the mean |Δp| of all tokens; contradicted if either fails.
"""

import itertools

import grpo
from claims.court import axes, decide, embedded, scored
from tools.plots import BLUE, ORANGE

KIND = "model"
EDGES = (0.0, 0.01, 0.05, 0.2, 0.5, 0.9, 0.99, 1.0)
BINS = tuple(f"{low:g} to {high:g}" for low, high in itertools.pairwise(EDGES))


def compute():
    args = grpo.Args()
    model, batch, _ = embedded(128, 8, args)
    learner, engine = (scored(model, batch, precision, args)[batch.response_mask] for precision in ("fp32", "bf16"))
    p, ratio, change = learner.exp(), (learner - engine).abs(), (learner.exp() - engine.exp()).abs()
    ranges = {name: (p > low) & (p <= high) for name, (low, high) in zip(BINS, itertools.pairwise(EDGES), strict=True)}
    ranges |= {"rare": p < 0.05, "likely": p > 0.9, "all": p > 0}
    return {
        name: {"log ratio": ratio[rows].mean().item(), "Δp": change[rows].mean().item(), "tokens": int(rows.sum())}
        for name, rows in ranges.items()
    }


def verdict(result):
    volatile = result["rare"]["log ratio"] >= 10 * result["likely"]["log ratio"]
    return decide(volatile and result["rare"]["Δp"] <= 2 * result["all"]["Δp"])


def effect(result):
    shown = {name: result[name] for name in ("rare", "likely", "all")}
    parts = [f"{name} {of_name['log ratio']:.1e} and {of_name['Δp']:.1e}" for name, of_name in shown.items()]
    return "mean change of log π and of π, bf16 against fp32: " + ", ".join(parts)


def draw(result):
    panel = axes(
        "Rare tokens: the ratio is noise, the probability hardly moves",
        "probability of the token",
        "mean absolute difference, bf16 against fp32",
        yscale="log",
    )
    for key, color, label in (("log ratio", ORANGE, "|log ratio|"), ("Δp", BLUE, "|Δp|")):
        panel.plot(BINS, [result[name][key] for name in BINS], marker="o", color=color, label=label)
    panel.tick_params(axis="x", labelsize="small")
    panel.legend()
    return panel.figure
