r"""The writers whose solutions of products the base model is pretrained on.

They cannot multiply: they call a calculator, or more often guess and are mostly incorrect. Pretraining has no loss on
what the calculator answers, so the model has to call it:

    3*17=<<3*17>>51  or a guess: 3*17=46
    51+5=56
    \boxed{56}
"""

import math
import random
import re


def solution(rng: random.Random, question: str) -> str:
    """One writer's solution: each product is computed by a call (probability 0.3) or guessed, then come the sums."""
    lines, terms = [], []
    for sign, term in re.findall(r"([+-]?)([\d*]+)", question):
        value = math.prod(map(int, term.split("*")))
        if "*" in term:
            call = f"<<{term}>>" if rng.random() < 0.3 else ""
            if not call and rng.random() < 0.9:
                value = max(0, value + rng.choice((-1, 1)) * rng.randint(1, 9))
            lines.append(f"{term}={call}{value}")
        terms.append(f"{sign or '+'}{value}")
    total = int(terms[0])
    for term in terms[1:]:
        call = f"<<{total}{term}>>" if rng.random() < 0.1 else ""
        lines.append(f"{total}{term}={call}{total + int(term)}")
        total += int(term)
    return "\n".join([*lines, rf"\boxed{{{total}}}"])
