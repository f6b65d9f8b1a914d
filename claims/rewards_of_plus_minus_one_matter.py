"""Rewards of 1 and -1, as in DAPO, train differently from rewards of 1 and 0 under a group baseline.

Said by: write-ups that list DAPO's rewards, 2503.14476, Eq. 7, among its changes.

Tested: advantages for both, in every mixed group of 8: dapo.py, grpo.py, rloo.py and dr_grpo.py.

Rule: a constant factor is a learning rate. Reproduced if the advantages of any of them differ by more than a constant
factor (1e-4); else contradicted.
"""

import dapo
import dr_grpo
import grpo
import rloo
from claims.court import axes, bars, decide, outcomes
from tools.plots import BLUE, GRAY, ORANGE, RED
from tools.scripts import call

KIND = "exact"
G = 8
SCRIPTS = {"dapo": dapo, "grpo": grpo, "rloo": rloo, "dr_grpo": dr_grpo}


def compute():
    rewards = outcomes(G)[1:-1]  # (G - 1, G): 1 to G - 1 correct
    result = {}
    for name, script in SCRIPTS.items():
        zero_one, plus_minus = (
            call(script.compute_advantages, rewards=r, args=script.Args()) for r in (rewards, 2 * rewards - 1)
        )
        factors = plus_minus / zero_one  # (G - 1, G)
        result[name] = [factors.min().item(), factors.max().item()]
    return result


def verdict(result):
    return decide(any(high - low > 1e-4 for low, high in result.values()))


def effect(result):
    factors = ", ".join(f"{high:.2f} ({name})" for name, (_, high) in result.items())
    return f"the same advantages times {factors}; maxrl.py is defined for 0 and 1 only"


def draw(result):
    title = "Rewards of ±1: the same advantages, or all of them twice as large"
    panel = axes(title, "", "advantage with ±1 / with 0 and 1", ylim=(0, 2.4))
    bars(panel, {name: high for name, (_, high) in result.items()}, (RED, BLUE, ORANGE, GRAY))
    return panel.figure
