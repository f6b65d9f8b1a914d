"""Sums with products in them, such as `48+5-6*6=?`."""

import random


def product_problem(rng: random.Random) -> tuple[str, str]:
    """A sum of 2 or 3 terms, at least one a product, and its answer; all products and partial results in 0..99."""
    while True:
        total, text = 0, ""
        for _ in range(rng.randint(2, 3)):
            a = rng.randint(2, 9)
            b = rng.randint(2, 99 // a)
            value, term = (a * b, f"{a}*{b}") if rng.random() < 0.5 else (b, f"{b}")
            signs = [sign for sign in (1, -1) if 0 <= total + sign * value <= 99]
            if not signs:
                break
            sign = rng.choice(signs) if text else 1
            total += sign * value
            text += ("+" if sign > 0 else "-") + term
        else:
            if "*" in text:
                return f"{text[1:]}=?", str(total)
