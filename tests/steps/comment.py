"""A reward function for tests, which says something of every second response."""


def length_if_odd(problem, text, tokens, truncated):
    return 0.0, str(len(tokens)) * (len(tokens) % 2)
