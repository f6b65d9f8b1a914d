"""The players whose games the base model is pretrained on.

For each guess they choose anew how to find it: the lowest number that remains (0.55); any of the game's numbers,
whatever they were told (0.35); any that remains (0.05); or the middle of what remains (0.05). Pretraining has no loss
on the answers:

    17?higher 18-29
    27?lower 18-26
    22?
"""

import random

from worlds.guessing.environment import feedback
from worlds.guessing.problems import GUESSES, bounds

HABITS = ("lowest", "careless", "inside", "middle")
PLAYERS, TEXTBOOK = (0.55, 0.35, 0.05, 0.05), (0.25, 0.0, 0.25, 0.5)


def solution(rng: random.Random, question: str, textbook: bool) -> str:
    """One game, won or lost. In a textbook nobody is careless, and half of the guesses are the middle."""
    first, last = low, high = bounds(question)
    secret, text = rng.randint(low, high), ""
    for turn in range(1, GUESSES + 1):
        match rng.choices(HABITS, TEXTBOOK if textbook else PLAYERS)[0]:
            case "lowest":
                guess = low
            case "careless":
                guess = rng.randint(first, last)
            case "inside":
                guess = rng.randint(low, high)
            case "middle":
                guess = (low + high) // 2
        text += f"{guess}?"
        if guess == secret or turn == GUESSES:
            return text
        answer, low, high = feedback(guess, secret, low, high)
        text += answer
