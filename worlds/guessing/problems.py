"""A guessing game: find a number between two others in four guesses. A problem is a numbered game, `4821: 17-29?`."""

import random
import re

GUESSES = 4  # enough for 15 numbers, if each guess is the middle of what remains


def guessing_problem(rng: random.Random) -> tuple[str, str]:
    """A question and the number to find, one of 11 to 15. The game's number says nothing about it."""
    count = rng.randint(11, 15)
    low = rng.randint(1, 99 - count + 1)
    high = low + count - 1
    return f"{rng.randint(1, 9999)}: {low}-{high}?", str(rng.randint(low, high))


def bounds(question: str) -> tuple[int, int]:
    """The least and the largest number that a question allows."""
    low, high = re.search(r"(\d+)-(\d+)\?", question).groups()
    return int(low), int(high)
