"""Several attempts at a task of reasoning-gym: its scorer answers each turn, and the last score is the reward."""

from functools import cache

from common.environments import Environment, Observation, Play
from common.records import Problem
from common.verification.answers import last_boxed
from common.verification.workers import Program, Worker

SCORE_LIMIT = 10.0  # seconds


@cache
def worker(scorer: str) -> Worker:
    """A process for the scorer, because some scorers execute what they are given."""
    return Worker(Program(scorer, SCORE_LIMIT))


def play(problem: Problem) -> Play:
    """Runs until the box in a turn scores 1. After the last turn, the verifier scores the last box in the same way."""
    answer = None
    while True:
        box = last_boxed((yield answer))
        told = "There is no \\boxed{}."
        if box is not None:
            reply = worker(problem.answer.scorer).ask([[{"payload": problem.answer.payload}, box, [], False]])
            score = 0.0 if reply.failed else reply.value[0]
            if score >= 1:
                return 1.0
            told = f"The score is {score:g}, not 1."
        answer = Observation(f"\n{told} Try again.\n", state=str(box))


def environment(task: str) -> Environment:
    return Environment(play)
