"""At a small drift, the clip's upper bound lowers the entropy, and a higher upper bound keeps it up.

Said by: DAPO, 2503.14476, Fig. 2b and Sec. 3.1 (clip-higher, bounds 0.2 and 0.28). "Clip-Low Increases Entropy and
Clip-High Decreases Entropy", 2509.26114, finds under random rewards that the upper bound lowers the entropy and the
lower bound raises it.

Tested: the policy, a softmax over 16 answers, has drifted from the one that sampled (noise of standard deviation 0.15
on the logits), and rewards are coin flips, so any effect of the expected update comes from the clip. The change of
entropy along the expected update of dapo.py's loss, to first order, in 20,000 draws of logits with standard deviation
2: peaked, as language models are. Nearly uniform policies (1) and other drifts are also reported.

Rule: by 95 % intervals over the draws. Reproduced if the upper bound alone lowers the entropy, and the bounds 0.2 and
0.28 leave more of it than 0.2 and 0.2; contradicted if either is the other way round.
"""

import dapo
from claims.court import axes, coefficients, judge, judge_all
from tools.plots import BLUE, GRAY, GREEN, RED
from tools.stats import interval

import torch

KIND = "exact"
V, DRAWS, SPREAD, DRIFT, OFF = 16, 20_000, 2, 0.15, 1e6
DRIFTS = (0.05, 0.15, 0.3, 0.6)
BOUNDS = {
    "lower bound alone": (0.2, OFF),
    "0.2 and 0.28 (DAPO)": (0.2, 0.28),
    "0.2 and 0.2": (0.2, 0.2),
    "upper bound alone": (OFF, 0.2),
}


def entropy_change(logp, old_logp, low, high):
    """First-order change of the entropy (N,) by the expected update of N policies (N, V) with coin-flip rewards."""
    args = dapo.Args(clip_eps_low=low, clip_eps_high=high)
    flat, old = logp.reshape(-1, 1), old_logp.reshape(-1, 1)  # every answer is a response of one token
    signs = [coefficients(dapo, flat, torch.full_like(flat, A), args, old_logp=old) for A in (1.0, -1.0)]
    u = old_logp.exp() * sum(signs).view(logp.shape) / 2  # (N, V), factor of each answer's score
    p = logp.exp()
    update = u - p * u.sum(1, keepdim=True)  # (N, V), change of the logits
    entropy = -(p * logp).sum(1, keepdim=True)
    return (-p * (logp + entropy) * update).sum(1)


def compute():
    generator = torch.Generator().manual_seed(0)
    logits, noise = torch.randn(2, DRAWS, V, dtype=torch.float64, generator=generator)

    def changes(spread, drift):
        old_logp, logp = (spread * logits).log_softmax(1), (spread * logits + drift * noise).log_softmax(1)
        return {name: entropy_change(logp, old_logp, *bounds).tolist() for name, bounds in BOUNDS.items()}

    def gain(of_bounds):
        return interval(
            [a - b for a, b in zip(of_bounds["0.2 and 0.28 (DAPO)"], of_bounds["0.2 and 0.2"], strict=True)]
        )

    by_drift = {drift: changes(SPREAD, drift) for drift in DRIFTS}
    return {
        "entropy change": {drift: {name: interval(x) for name, x in c.items()} for drift, c in by_drift.items()},
        "gain of 0.28 over 0.2": {drift: gain(of_bounds) for drift, of_bounds in by_drift.items()},
        "gain, nearly uniform policy": gain(changes(1, DRIFT)),
    }


def verdict(result):
    rise, half = result["entropy change"][str(DRIFT)]["upper bound alone"]
    return judge_all(
        judge(*result["gain of 0.28 over 0.2"][str(DRIFT)], smallest=0.0), judge(-rise, half, smallest=0.0)
    )


def effect(result):
    upper, half = result["entropy change"][str(DRIFT)]["upper bound alone"]
    gain = {drift: f"{mean:+.4f}" for drift, (mean, _) in result["gain of 0.28 over 0.2"].items()}
    uniform = f"nearly uniform policy: {result['gain, nearly uniform policy'][0]:+.4f}"
    parts = f"upper bound alone {upper:+.4f} ± {half:.4f}; 0.28 instead of 0.2 gains {gain[str(DRIFT)]}"
    return f"entropy per unit step: {parts} (drift 0.3: {gain['0.3']}; 0.6: {gain['0.6']}; {uniform})"


def draw(result):
    panel = axes(
        "Random rewards: the upper bound lowers the entropy, at small drift",
        "drift of the policy since sampling (standard deviation of the logits)",
        "change of entropy per unit step",
    )
    for name, color in zip(BOUNDS, (GREEN, BLUE, GRAY, RED), strict=True):
        means, halves = zip(*(result["entropy change"][str(drift)][name] for drift in DRIFTS), strict=True)
        panel.errorbar(DRIFTS, means, halves, marker="o", capsize=3, color=color, label=name)
    panel.axhline(0, color="black", linewidth=0.8)
    panel.legend()
    return panel.figure
