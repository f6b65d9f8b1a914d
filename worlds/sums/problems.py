"""Sums such as `35-26+12-11+46=?`."""

import random


def sum_problem(rng: random.Random, min_terms: int = 2, max_terms: int = 6) -> tuple[str, str]:
    """One sum and its answer: `min_terms` to `max_terms` terms in 1..49, every partial result in 0..99."""
    total = rng.randint(1, 49)
    text = str(total)
    for _ in range(rng.randint(min_terms - 1, max_terms - 1)):
        term = rng.randint(1, 49)
        if total + term > 99 or (total >= term and rng.random() < 0.5):
            term = -term
        total += term
        text += f"{term:+d}"
    return f"{text}=?", str(total)


def hard_sum_problem(rng: random.Random) -> tuple[str, str]:
    """A sum of 5 to 8 terms and its answer."""
    return sum_problem(rng, 5, 8)
