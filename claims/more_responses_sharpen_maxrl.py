"""More responses per prompt make MaxRL's gradient less noisy and bring its objective nearer to maximum likelihood.

Said by: MaxRL, 2602.02710, Abstract (its objectives "interpolate between standard reinforcement learning and exact
maximum likelihood as additional sampling compute is allocated"), as its difference from methods in which more samples
only reduce variance.

Tested: all groups of N = 2 to 64 responses to a prompt solved with probability p = 0.02, 0.1 and 0.5: the variance of
one group's gradient over its squared mean, and the weight w(p) of ∇p over maximum likelihood's 1/p, for maxrl.py and
rloo.py.

Rule: reproduced if with every doubling of N the relative variance of maxrl.py falls and w(p) p rises (or is within 1 %
of 1), at every p; else contradicted.
"""

import itertools

import maxrl
import rloo
from claims.court import axes, decide, group_gradients
from tools.plots import BLUE, GRAY, ORANGE

KIND = "exact"
SIZES, CHANCES = (2, 4, 8, 16, 32, 64), (0.02, 0.1, 0.5)
SCRIPTS = {"maxrl": maxrl, "rloo": rloo}


def moments(script, p, N):
    """Relative variance of a group's gradient, and w(p) p."""
    chance, gradient = group_gradients(script, p, N)
    mean = (chance * gradient).sum()
    return {"variance": ((chance * gradient**2).sum() / mean**2 - 1).item(), "w p": (mean * p).item()}


def compute():
    return {name: {p: {N: moments(s, p, N) for N in SIZES} for p in CHANCES} for name, s in SCRIPTS.items()}


def verdict(result):
    pairs = [pair for of_p in result["maxrl"].values() for pair in itertools.pairwise(of_p.values())]
    nearer = all(more["w p"] > fewer["w p"] or more["w p"] > 0.99 for fewer, more in pairs)
    return decide(nearer and all(more["variance"] < fewer["variance"] for fewer, more in pairs))


def effect(result):
    few, many = result["maxrl"]["0.02"]["2"], result["maxrl"]["0.02"]["64"]
    variance = f"relative variance {few['variance']:.1f} to {many['variance']:.2f}"
    of_rloo = f"rloo: {result['rloo']['0.02']['64']['variance']:.2f}"
    return f"p = 0.02, N = 2 to 64: {variance} ({of_rloo}), w(p) p {few['w p']:.2f} to {many['w p']:.2f}"


def draw(result):
    panel = axes(
        "MaxRL's weights approach 1/p as groups grow, RLOO's do not",
        "responses per prompt, N",
        "w(p) p: 1 is maximum likelihood",
        xscale="log",
        ylim=(0, 1.45),
    )
    for p, color in zip(CHANCES, (ORANGE, BLUE, GRAY), strict=True):
        for name, line in (("maxrl", "-"), ("rloo", ":")):
            values = [of_n["w p"] for of_n in result[name][str(p)].values()]
            panel.plot(SIZES, values, marker=".", color=color, linestyle=line, label=f"{name}.py, p = {p}")
    panel.set_xticks(SIZES, SIZES)
    panel.minorticks_off()
    panel.legend(ncols=3, fontsize="small", loc="upper center")
    return panel.figure
