"""The guessing game: `24?` is a guess, and `higher 25-29` says where the number is."""

import re

from common.environments import Environment, Observation, Play
from common.records import Problem
from worlds.guessing.problems import GUESSES, bounds


def feedback(guess: int, secret: int, low: int, high: int) -> tuple[str, int, int]:
    """`higher` or `lower` with the range that remains, and its ends."""
    low, high = (max(low, guess + 1), high) if guess < secret else (low, min(high, guess - 1))
    return f"{'higher' if guess < secret else 'lower'} {low}-{high}\n", low, high


def play(problem: Problem) -> Play:
    """Reward 1 if the number is guessed in time. A turn that is not a guess ends the game."""
    secret, (low, high), answer = int(problem.answer), bounds(problem.question), None
    for left in reversed(range(GUESSES)):
        text = yield answer
        if not re.fullmatch(r"\d{1,2}\?", text):
            break
        guess = int(text[:-1])
        if guess == secret:
            return 1.0
        told, low, high = feedback(guess, secret, low, high)
        answer = Observation(told, state=f"{low}-{high}, {left} left")
    return 0.0


ENVIRONMENT = Environment(play, stop=("?",))
