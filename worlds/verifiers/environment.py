"""Environments of the package verifiers: its own rollout, in which the policy's turns replace a server's."""

import asyncio
from typing import Any

from common.environments import Environment, Observation, Play
from common.records import Problem
from worlds.verifiers.problems import load


def environment(task: str) -> Environment:
    return Environment(lambda problem: play(load(task), problem))


def play(environment: Any, problem: Problem) -> Play:
    """One rollout. What is new in a prompt, besides the policy's own message, is the observation."""
    from verifiers.clients import Client
    from verifiers.types import Response, ResponseMessage

    class Waiting(Client):
        """A client whose responses are the turns that the generator receives."""

        async def get_response(self, prompt: Any, model: str, *args: Any, **kwargs: Any) -> Response:
            asked.set_result(list(prompt))
            message = ResponseMessage(content=await answered, finish_reason="stop", is_truncated=False)
            return Response(id="", created=0, model=model, message=message)

    Waiting.__abstractmethods__ = frozenset()  # the methods with which the package's own clients use a server
    loop = asyncio.new_event_loop()
    try:
        asked, answered = loop.create_future(), loop.create_future()
        rollout = loop.create_task(environment.rollout(problem.row, Waiting(None), "policy"))
        observation, known = None, 0
        while True:
            loop.run_until_complete(asyncio.wait([asked, rollout], return_when=asyncio.FIRST_COMPLETED))
            if rollout.done():
                break
            prompt, waiting = asked.result(), answered
            if known:
                observation = Observation("\n".join(str(message.content) for message in prompt[known:]))
            known = len(prompt) + 1
            text = yield observation
            asked, answered = loop.create_future(), loop.create_future()
            waiting.set_result(text)
        state = rollout.result()
        if state["error"]:
            raise state["error"]
        loop.run_until_complete(environment.rubric.score_rollout(state))
        return state["reward"]
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.close()
