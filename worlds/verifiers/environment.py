"""Environments of the package verifiers: their own rollout, in which the policy's turns replace a server's."""

import asyncio
from typing import Any

from common.environments import Environment, Observation, Play
from common.records import Problem
from worlds.verifiers.problems import Chat, load
from worlds.verifiers.tools import shown


def environment(task: str) -> Environment:
    return Environment(lambda problem: play(load(task)[0], problem))


def play(environment: Any, problem: Problem) -> Play:
    """One rollout. The observation is what a prompt adds after the policy's own message."""
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    loop = runner.get_loop()
    asked, answered = loop.create_future(), loop.create_future()

    async def respond(chat: Chat, tools: list[Any]) -> str:
        """The policy's turn."""
        asked.set_result(chat)
        return await answered

    try:
        rollout = loop.create_task(environment.rollout(problem.row, respond))
        observation, before = None, None
        while True:
            loop.run_until_complete(asyncio.wait([asked, rollout], return_when=asyncio.FIRST_COMPLETED))
            if rollout.done():
                break
            chat, waiting = asked.result(), answered
            if before is not None:
                if len(chat) <= len(before) or chat[: len(before)] != before:
                    raise RuntimeError("it starts another conversation; only one is supported")
                new = chat[len(before) + 1 :]  # after the policy's own message
                observation = Observation("\n".join(map(shown, new)))
            before = chat
            text = yield observation
            asked, answered = loop.create_future(), loop.create_future()
            waiting.set_result(text)
        return rollout.result()
    finally:
        runner.close()  # cancels what is unfinished
