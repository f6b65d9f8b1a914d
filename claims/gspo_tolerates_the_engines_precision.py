"""GSPO's sequence ratio tolerates the engine's precision, so its log-probs need not be computed again by the learner.

Said by: GSPO, 2507.18071, Sec. 5.4, as an argument ("GSPO uses only sequence-level, rather than token-level,
likelihoods for optimization, and intuitively, the former is much more tolerant of precision discrepancies"); bounds
3e-4 and 4e-4 (Sec. 5.1).

Tested: 1,024 responses of the embedded model, before and after 30 steps of grpo.py, scored in fp32 as by the learner
and in fp16, bf16, or bf16 with 8-bit weights as by an engine. No update is made, so all ratios should be 1. Measured
are the fraction of responses whose gspo.py ratio is outside the bounds, and of tokens whose grpo.py ratio is outside 1
± 0.2. For longer responses the token differences of bf16 are resampled as if they were independent.

Rule: reproduced if in bf16 at most 5 % of the responses of both models are outside; else contradicted, at this length.

Not testable here: the mean over a response of 20 tokens does not average the engine's rounding as that over 10,000
does, where the extrapolation finds next to no responses outside the bounds.
"""

import gspo
from claims.court import axes, decide, embedded, loss_of, scored
from claims.runs import trial
from tools.plots import BLUE, ORANGE

import torch

KIND = "model"
PRECISIONS, LENGTHS = ("fp16", "bf16", "fp8"), (10, 30, 100, 300, 1000, 3000, 10_000)
LOW, HIGH = 1 - 3e-4, 1 + 4e-4


def outside(ratio, low, high):
    return ((ratio < low) | (ratio > high)).float().mean().item()


def measure(**settings):
    """Figures of the model named by the settings."""
    args = gspo.Args(**settings)
    model, batch, _ = embedded(128, 8, args)
    learner, advantages = scored(model, batch, "fp32", args), torch.ones(batch.response_mask.shape)
    result = {"responses": {}, "tokens": {}, "mean length": batch.response_mask.sum(1).float().mean().item()}
    for precision in PRECISIONS:
        engine = scored(model, batch, precision, args)
        _, metrics = loss_of(gspo, learner, advantages, args, engine, mask=batch.response_mask)
        result["responses"][precision] = outside(metrics["ratio"][:, 0], LOW, HIGH)
        differences = (learner - engine)[batch.response_mask]
        result["tokens"][precision] = outside(differences.exp(), 0.8, 1.2)
        if precision == "bf16":
            generator = torch.Generator().manual_seed(0)
            drawn = {n: torch.randint(len(differences), (1000, n), generator=generator) for n in LENGTHS}
            result["by length"] = {n: outside(differences[i].mean(1).exp(), LOW, HIGH) for n, i in drawn.items()}
    return result


def compute():
    return measure() | {"trained": measure(model=trial("grpo", 1).weights)}


def verdict(result):
    return decide(max(of_model["responses"]["bf16"] for of_model in (result, result["trained"])) <= 0.05)


def effect(result):
    base, trained = result["responses"], result["trained"]["responses"]
    shares = ", ".join(
        f"{share:.0%} ({precision}; {trained[precision]:.0%} trained)" for precision, share in base.items()
    )
    lengths, after = result["by length"], result["trained"]["by length"]
    long = ", ".join(f"{lengths[n]:.1%} ({after[n]:.1%} trained) at {n}" for n in ("1000", "10000"))
    longer = f"extrapolated to longer ones in bf16: {long} tokens"
    return f"responses outside the bounds though nothing has changed: {shares}; {longer}"


def draw(result):
    panel = axes(
        "Rounding alone puts short responses outside GSPO's bounds",
        "tokens of a response",
        "fraction outside the bounds, nothing trained (bf16)",
        xscale="log",
        ylim=(0, 1),
    )
    lengths = [int(n) for n in result["by length"]]
    panel.plot(lengths, result["by length"].values(), marker="o", color=BLUE, label="token differences resampled")
    panel.plot(
        [result["mean length"]], [result["responses"]["bf16"]], "s", color=ORANGE, label="embedded model, measured"
    )
    panel.legend()
    return panel.figure
