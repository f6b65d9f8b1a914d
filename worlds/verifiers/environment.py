"""Environments of the package verifiers: their own rollout, in which the policy's turns replace a server's."""

import asyncio
from typing import Any

from common.environments import Aside, Environment, Observation, Play
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

    async def respond(chat: Chat, tools: list[Any], aside: bool = False) -> str:
        """The policy's turn, as the agent that learns or, in an aside, as another one."""
        if aside and tools:
            raise RuntimeError("an agent that does not learn has tools, which is not supported")
        asked.set_result((chat, aside))
        return await answered

    try:
        rollout = loop.create_task(environment.rollout(problem.row, respond))
        answer: Observation | Aside | None = None
        before: Chat | None = None
        while True:
            loop.run_until_complete(asyncio.wait([asked, rollout], return_when=asyncio.FIRST_COMPLETED))
            if rollout.done():
                break
            (chat, aside), waiting = asked.result(), answered
            if aside:
                answer = Aside([{"role": message["role"], "content": shown(message)} for message in chat])
            elif before is not None:
                if len(chat) <= len(before) or chat[: len(before)] != before:
                    raise RuntimeError("its agent starts another conversation; only one is supported")
                new = chat[len(before) + 1 :]  # after the policy's own message
                answer = Observation("\n".join(map(shown, new)))
            before = before if aside else chat
            text = yield answer
            asked, answered = loop.create_future(), loop.create_future()
            waiting.set_result(text)
        return rollout.result()
    finally:
        runner.close()  # cancels what is unfinished
