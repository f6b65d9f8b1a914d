"""The mean reward is the baseline of least variance.

Said by: Weaver and Tao (2001), abstract ("the optimal (or variance minimizing) constant reward baseline is equal to
the long-term average expected reward"), and write-ups on the group mean. Against it: 2602.07078, Abstract ("standard
group-based baselines overlook sequence heterogeneity"), whose method uses the best baseline,
E[R ‖∇log π‖²] / E[‖∇log π‖²].

Tested: the policies of baseline_lowers_variance.py, 200 draws of a softmax over 8 answers.

Rule: reproduced if the mean reward has at most 1 % more variance than the best baseline in 95 % of the draws. Else
contradicted.
"""

from claims.baseline_lowers_variance import compute
from claims.court import axes, decide
from tools.plots import BLUE, ORANGE

__all__ = ["compute"]
KIND = "exact"


def share_best(result):
    ratios = result["variance with the mean over the best"]
    return sum(ratio <= 1.01 for ratio in ratios) / len(ratios)


def verdict(result):
    return decide(share_best(result) >= 0.95)


def effect(result):
    ratios = sorted(result["variance with the mean over the best"])
    of_best = f"variance {ratios[len(ratios) // 2]:.2f} times the best's in the median, {ratios[-1]:.1f} at worst"
    return f"best to 1% in {share_best(result):.0%} of the draws; {of_best}"


def draw(result):
    panel = axes(
        "The best baseline is mostly far from the mean reward",
        "mean reward of the policy",
        "best baseline",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    panel.plot(result["mean reward"], result["best baseline"], ".", color=BLUE, label="a draw of the policy")
    panel.plot([0, 1], [0, 1], color=ORANGE, label="best = mean reward")
    panel.legend()
    return panel.figure
