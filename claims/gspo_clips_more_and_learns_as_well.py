"""GSPO clips far more than GRPO and learns at least as well.

Said by: GSPO, 2507.18071, Abstract ("superior training efficiency and performance compared to the GRPO algorithm"),
Fig. 2 and Sec. 5.2 (a fraction of clipped tokens two orders of magnitude larger, and a higher training efficiency).

Tested: gspo.py with the paper's bounds (3e-4 and 4e-4) and grpo.py (0.2) for 25 steps of 64 responses with 16 updates
each, at a learning rate of 1e-4, which is too high for GRPO with so many updates: on the stress page, at the best rate
of each, they do not differ. Responses have about 40 tokens here and thousands in the paper, so a response's ratio is
noisier here.

Rule: by held-out accuracy, 95 % interval of the paired difference. Contradicted if GSPO clips less than 10 times as
much as GRPO, or if it is worse by 0.05 or more and the interval excludes 0; reproduced if it clips more and the
interval excludes a loss of 0.05; else inconclusive. Void where GRPO clips less than 1 %.
"""

from claims.court import CONTRADICTED, VOID
from claims.runs import CLIPPED, REUSE, compare, draw_arms, judged_lossless, summarize

KIND = "runs"
SMALLEST = 0.05
ARMS = {"GRPO": f"grpo {REUSE}", "GSPO": f"gspo {REUSE}"}


def compute(seeds):
    return compare(ARMS, [("GRPO", "GSPO")], seeds)


def verdict(result):
    clipped = {name: arm["clipped"] for name, arm in result["arms"].items()}
    if clipped["GRPO"] < CLIPPED:
        return VOID
    if clipped["GSPO"] < 10 * clipped["GRPO"]:
        return CONTRADICTED
    return judged_lossless(result, "GRPO → GSPO", SMALLEST)


def deciding(result):
    """What the verdict depends on beside the difference."""
    return "clipped " + " and ".join(f"{arm['clipped']:.1%}" for arm in result["arms"].values())


effect = summarize


def draw(result):
    return draw_arms(result, "16 updates from each batch: GRPO and GSPO")
