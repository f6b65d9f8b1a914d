"""An environment for a model that writes random letters; oracles/agent.py replays it."""

from common.environments import Environment, Observation


def play(problem):
    """A turn with an upper-case letter is the last one; in other turns the last character is ignored."""
    text = yield
    while not any(map(str.isupper, text)):
        state = None if len(text) % 4 == 3 else "letter" if text[:1].isalpha() else "other"
        text = yield Observation(str(len(text) % 3), state, read=len(text) - 1)


LETTERS = Environment(play, stop=("1", "e", "x"))
