"""Environments of verifiers 0.4: tasks, and a program (harness) that asks a model server on behalf of an agent.

The harness here asks once per turn, in this process; the server answers with the policy's turn.
"""

import asyncio
import itertools
import resource
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from worlds.verifiers.problems import MOST, Chat, split

import httpx
import verifiers.v1 as vf
from verifiers.v1.clients import Client, EvalClientConfig, ModelContext
from verifiers.v1.configs.agent import TimeoutConfig, agent_config_fields
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.runtimes import ProgramResult, SubprocessConfig
from verifiers.v1.types import AssistantMessage, Response
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

__all__ = ["Adapter", "Policy"]
OPENED = 1000  # problems, where each prompt is only known when its episode has begun
FILES = 10_240  # each open episode holds six
HARNESS = "policy"
sys.modules[f"verifiers.v1.harnesses.{HARNESS}"] = sys.modules[__name__]  # where the package looks for it

Respond = Callable[[Chat], Awaitable[str]]


class Policy(vf.Harness[vf.HarnessConfig]):
    """One request for each turn of the agent."""

    APPENDS_SYSTEM_PROMPT, SUPPORTS_RESUME, EXECUTES_CODE, NEEDS_CONTAINER = True, True, False, False

    async def launch(self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, _: Any, data: Any) -> Any:
        body = {"model": ctx.model, "messages": beginning(data)}
        # The server is on this machine: no TLS, no proxy.
        async with httpx.AsyncClient(timeout=None, verify=False, trust_env=False) as client:
            headers = {"Authorization": f"Bearer {secret}"}
            reply = await client.post(f"{endpoint}/chat/completions", headers=headers, json=body)
        return ProgramResult(exit_code=0 if reply.is_success else 1, stdout="", stderr=reply.text)


class Server(InterceptionServer):
    """The server that records an episode, with the policy's turns as its model's."""

    def __init__(self, respond: Respond) -> None:
        super().__init__()
        self.respond = respond

    def _client(self, config: Any) -> Client:
        return Turns(self.respond)


class Turns(Client):
    def __init__(self, respond: Respond) -> None:
        self.respond = respond

    async def get_response(self, dialect: Any, body: dict[str, Any], *args: Any, **kwargs: Any) -> Response:
        turn = AssistantMessage(content=await self.respond(body["messages"]))
        return Response(id="", created=0, model=body["model"], message=turn, finish_reason="stop")


def beginning(data: Any) -> Chat:
    """The chat with which a task begins, unless its environment has the first word."""
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*system, {"role": "user", "content": data.prompt}]
    return [*system, *map(message_to_wire, data.prompt or [])]


class Adapter:
    def __init__(self, task: str) -> None:
        config = resolve_env_config({"taskset": {"id": task}})
        agents = agent_config_fields(config)
        if len(agents) > 1:
            raise ValueError(f"it has several agents ({', '.join(agents)}), and the policy can be one")
        # A task's time limit would count the time that a turn waits for the rest of the batch.
        own = {"runtime": SubprocessConfig(), "harness": vf.HarnessConfig(id=HARNESS)}
        own["timeout"] = TimeoutConfig(rollout=1e9)
        config = config.model_copy(update={name: agent.model_copy(update=own) for name, agent in agents.items()})
        self.environment = load_environment(config)
        taskset = self.environment.taskset
        if taskset.toolsets(taskset.config) or taskset.task_type().toolsets(taskset.config.task):
            raise ValueError("it has tools, whose calls the policy's text does not make")
        tasks = iter(taskset)
        if (first := next(tasks, None)) is None:
            raise ValueError("it has no tasks")
        self.opens = first.data.prompt is None
        self.tasks = [first, *itertools.islice(tasks, (OPENED if self.opens else MOST) - 1)]
        allow_files(FILES)

    def rows(self) -> tuple[list[Any], list[Any]]:
        """(prompt, row) for training and held out."""
        prompts = [
            asyncio.run(self.opening(i)) if self.opens else beginning(task.data) for i, task in enumerate(self.tasks)
        ]
        return split([(prompt, {"task": i}) for i, prompt in enumerate(prompts)])

    async def opening(self, task: int) -> Chat:
        """What an environment that has the first word asks."""
        loop = asyncio.get_running_loop()
        asked = loop.create_future()

        async def respond(chat: Chat) -> str:
            asked.set_result(chat)
            return await loop.create_future()

        rollout = asyncio.create_task(self.rollout({"task": task}, respond))
        await asyncio.wait([asked, rollout], return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            rollout.result()
            raise ValueError("an episode ended before the policy was asked")
        rollout.cancel()
        return asked.result()

    async def rollout(self, row: dict[str, Any], respond: Respond) -> float:
        async with Server(respond) as server:
            self.environment._interception = server
            context = ModelContext("policy", EvalClientConfig(api_key_var="NONE"))
            episode = await self.environment.run_episode(self.tasks[row["task"]], context)
        if not episode.ok:
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            raise RuntimeError(errors[0].message)
        return episode.traces[0].reward


def allow_files(count: int) -> None:
    """Let this process have so many open files, if its hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
