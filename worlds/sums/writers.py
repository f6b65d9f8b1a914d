"""The imperfect writers whose solutions of sums the base model is pretrained on.

At every point a writer either takes the next step, which is reliable, or stops early and guesses the rest, which is
mostly incorrect when much is left:

    12+7=19          a step: one line per operation, the result nearly always correct
    19-5=24 wait     rarely an error, and in half of the cases the writer notices it
    19-5=14
    14+23=37
    \\boxed{37}       a writer who guesses writes this line earlier, with the guess in it
"""

import random


def solution(rng: random.Random, question: str, textbook: bool, filler: bool = False) -> str:
    """One writer's solution of `question`, ending in a box.

    A textbook solution has every step and no error. `filler` may add lines that repeat the result.
    """
    *steps, box = solution_lines(rng, question, textbook)
    return "\n".join([*steps, *(filler_lines(rng, box[7:-1]) if filler else []), box])


def demonstration(question: str) -> str:
    """A textbook solution, always the same one."""
    return solution(random.Random(0), question, textbook=True)


def solution_lines(rng: random.Random, question: str, textbook: bool) -> list[str]:
    """The steps up to the point where the writer stops, and a box."""
    terms = question.removesuffix("=?").replace("+", " +").replace("-", " -").split()
    total, lines = int(terms[0]), []
    for i, term in enumerate(terms[1:]):
        if not textbook and rng.random() < (0.6 if i == 0 else 0.15):
            rest = total + sum(map(int, terms[1 + i :]))
            return [*lines, rf"\boxed{{{guess(rng, rest, len(terms) - 1 - i)}}}"]
        result = total + int(term)
        if not textbook and rng.random() < 0.03:  # an error in this step
            wrong = max(0, result + rng.choice((-10, -1, 1, 10)))
            noticed = rng.random() < 0.5
            lines.append(f"{total}{term}={wrong}" + (" wait" if noticed else ""))
            if not noticed:
                total = wrong
                continue
        lines.append(f"{total}{term}={result}")
        total = result
    return [*lines, rf"\boxed{{{total}}}"]


def guess(rng: random.Random, total: int, operations_left: int) -> int:
    """A guess of the result: correct with probability 1/2 for one operation left, 1/8 for two, 1/32 …"""
    if rng.random() < 0.5 * 0.25 ** (operations_left - 1):
        return total
    return max(0, total + rng.choice((-1, 1)) * rng.randint(1, 6 * operations_left))


def filler_lines(rng: random.Random, result: str) -> list[str]:
    """Lines that only repeat the result: none with probability 1/4, and each line is the last with 1/4."""
    lines = []
    if rng.random() < 0.75:
        while not lines or rng.random() < 0.75:
            lines.append(f"{rng.choice(('so', 'hm', 'ok', 'er'))} {result}")
    return lines
