"""Environments of verifiers 0.4: tasks, and a program (harness) that asks a model server on behalf of an agent.

The harness here runs in this process, and the server answers it with the policy's turns.
"""

import asyncio
import itertools
import json
import os
import resource
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from common.cli import first_line
from worlds.verifiers.problems import MOST, Chat, split
from worlds.verifiers.tools import offer, read_calls

import httpx
import verifiers.v1 as vf
from verifiers.v1.clients import Client, EvalClientConfig, ModelContext
from verifiers.v1.configs.agent import TimeoutConfig, agent_config_fields
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.compaction import bound_tool_message
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.runtimes import ProgramResult, SubprocessConfig
from verifiers.v1.types import AssistantMessage, Response, ToolCall
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

__all__ = ["Adapter", "Policy"]
OPENED = 1000  # most problems, if prompts are only known once an episode has begun
OPENED_WITH_SERVERS = 50  # the same if each episode starts tool servers (seconds each)
FILES = 10_240  # each open episode holds six, or eight with tools
CONNECT_SECONDS, STOP_SECONDS = 60, 60
HARNESS = "policy"
sys.modules[f"verifiers.v1.harnesses.{HARNESS}"] = sys.modules[__name__]  # where the package looks for it

Tools = list[dict[str, Any]]
Respond = Callable[[Chat, Tools, bool], Awaitable[str]]  # the last argument is true for an agent that does not learn
Answer = Callable[[str, Chat, Tools], Awaitable[str]]  # the first argument is the agent's name


class Policy(vf.Harness[vf.HarnessConfig]):
    """The program of the agent: it asks for a turn and calls the tools that the turn names, until it names none."""

    APPENDS_SYSTEM_PROMPT, SUPPORTS_MCP, SUPPORTS_RESUME, SUPPORTS_TOOL_INTERCEPTION = True, True, True, True
    EXECUTES_CODE, NEEDS_CONTAINER = False, False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, urls: dict[str, str], data: Any,
        tool_interception_url: str | None = None,
    ) -> Any:  # fmt: skip
        messages = beginning(data)
        async with one_error(), AsyncExitStack() as stack:
            named = {"mcpServers": {name: {"url": url} for name, url in urls.items()}}
            tools, places, servers = await asyncio.wait_for(connect_mcp(named, stack), CONNECT_SECONDS)
            body = {"model": ctx.model, "messages": messages, "tools": tools}
            # The server is on this machine: no TLS, no proxy.
            client = httpx.AsyncClient(
                headers={"Authorization": f"Bearer {secret}"}, timeout=None, verify=False, trust_env=False
            )
            await stack.enter_async_context(client)
            while True:
                reply = await client.post(f"{endpoint}/chat/completions", json=body)
                if not reply.is_success:
                    return ended(reply.text)
                messages.append(turn := reply.json()["choices"][0]["message"])
                if not turn.get("tool_calls"):
                    return ended()
                for call in turn["tool_calls"]:
                    id, name = call["id"], call["function"]["name"]
                    arguments = json.loads(call["function"]["arguments"])
                    if tool_interception_url:  # the environment may forbid the call, and answer instead
                        asked = {"tool_call_id": id, "name": name, "arguments": arguments}
                        reply = await client.post(tool_interception_url, json=asked)
                        if not reply.is_success or reply.json()["action"] == "stop":
                            return ended(reply.text)
                        if reply.json()["action"] == "deny":
                            messages.append(bound_tool_message(reply.json()["message"]))
                            continue
                    content: Any = f"error: unknown tool {name!r}"
                    if name in places:
                        content = await call_mcp(servers, places, name, arguments)
                    result = {"role": "tool", "tool_call_id": id, "content": content, "name": name}
                    messages.append(bound_tool_message(result))


def ended(error: str = "") -> ProgramResult:
    return ProgramResult(exit_code=1 if error else 0, stdout="", stderr=error)


@asynccontextmanager
async def one_error() -> AsyncIterator[None]:
    """One sentence for a tool server that is silent, or that ends with a group of errors."""
    try:
        yield
    except TimeoutError:
        raise RuntimeError(f"a tool server does not answer within {CONNECT_SECONDS} seconds") from None
    except ExceptionGroup as error:
        first: Exception = error
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        raise RuntimeError(f"a tool server does not answer ({first_line(first)})") from None


class Server(InterceptionServer):
    """The server that records an episode, with the policy's turns as its model's."""

    def __init__(self, answer: Answer, secrets: tuple[str, ...]) -> None:
        super().__init__(state_service_secrets=secrets)
        self.answer = answer

    def _client(self, config: Any) -> Client:
        return Turns(self.answer)


class Turns(Client):
    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    async def get_response(self, dialect: Any, body: dict[str, Any], *args: Any, **kwargs: Any) -> Response:
        chat, tools = body["messages"], body.get("tools", [])
        text, found = read_calls(await self.answer(body["model"], chat, tools), chat, tools)
        calls = [ToolCall(**call) for call in found]
        turn = AssistantMessage(content=text, tool_calls=calls or None)
        reason = "tool_calls" if calls else "stop"
        about: dict[str, Any] = {"id": "", "created": 0, "model": body["model"]}
        choice = {"index": 0, "message": message_to_wire(turn), "finish_reason": reason}
        raw = about | {"object": "chat.completion", "choices": [choice]}
        return Response(**about, message=turn, finish_reason=reason, raw=raw)


def beginning(data: Any) -> Chat:
    """The chat with which a task begins, unless the environment writes it."""
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*system, {"role": "user", "content": data.prompt}]
    return [*system, *map(message_to_wire, data.prompt or [])]


class Adapter:
    def __init__(self, task: str) -> None:
        config = resolve_env_config({"taskset": {"id": task}})
        agents = agent_config_fields(config)
        if own := [name for name, agent in agents.items() if agent.model or agent.client]:
            raise ValueError(f"an agent has a model of its own ({own[0]}), which is not supported")
        # A task's time limit would count the time that a turn waits for the rest of the batch.
        same = {"runtime": SubprocessConfig(), "harness": vf.HarnessConfig(id=HARNESS)}
        same["timeout"] = TimeoutConfig(rollout=1e9)
        # An agent's model has the agent's name, so that the server knows who asks.
        update = {name: agent.model_copy(update=same | {"model": name}) for name, agent in agents.items()}
        self.environment = load_environment(config.model_copy(update=update | {"max_concurrent_agents": 1}))
        taskset = self.environment.taskset
        tasks = iter(taskset)
        if (first := next(tasks, None)) is None:
            raise ValueError("it has no tasks")
        self.opens, served = first.data.prompt is None or len(agents) > 1, bool(first.toolsets(first.config))
        most = (OPENED_WITH_SERVERS if served else OPENED) if self.opens else MOST
        self.tasks = [first, *itertools.islice(tasks, most - 1)]
        classes = {type(task): task for task in self.tasks}
        if len(classes) > 1 and any(task.toolsets(task.config) for task in classes.values()):
            raise ValueError("its tasks have several classes, and some have tools; only one class is supported")
        self.tools = served or bool(taskset.toolsets(taskset.config))
        allow_files(FILES)
        serve(self.environment)
        self.secrets = tuple(server.state_secret for server in self.environment._shared_tools.values())

    def rows(self) -> tuple[list[Any], list[Any]]:
        """(prompt, row) for training and held out."""
        chats = [[] if self.opens else beginning(task.data) for task in self.tasks]
        tools: Tools = []
        for i in range(len(chats)) if self.opens else range(self.tools):  # all tasks have the tools of the first one
            chats[i], tools = asyncio.run(self.opening(i))
            if self.opens and chats[i]:  # tasks that differ may begin alike, as in a card game: they are not the same
                chats[i][-1]["task"] = self.tasks[i].key
        return split([(offer(chat, tools), {"task": i}) for i, chat in enumerate(chats)])

    async def opening(self, task: int) -> tuple[Chat, Tools]:
        """What the policy is asked first, and the tools that it has."""
        loop = asyncio.get_running_loop()
        asked = loop.create_future()

        async def respond(chat: Chat, tools: Tools, aside: bool) -> str:
            asked.set_result((chat, tools))
            return await loop.create_future()

        rollout = asyncio.create_task(self.rollout({"task": task}, respond))
        await asyncio.wait([asked, rollout], return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            rollout.result()
            raise ValueError("an episode ended before the policy was asked")
        rollout.cancel()
        return asked.result()

    async def rollout(self, row: dict[str, Any], respond: Respond) -> float:
        """The reward of the agent that is asked first: it learns. The policy plays the other agents too."""
        traces: list[Any] = []  # of agents, each added when its part begins
        learner = ""

        async def answer(agent: str, chat: Chat, tools: Tools) -> str:
            nonlocal learner
            learner = learner or agent
            if not all(trace.agent.trainable for trace in traces if trace.agent.name == learner):
                raise ValueError(f"it asks {learner} first, an agent that is not to be trained")
            return await respond(chat, tools, agent != learner)

        for name, shared in self.environment._shared_tools.items():
            if shared.runtime and any(process.returncode is not None for process in shared.runtime._background):
                raise RuntimeError(f"the tool server {name} has ended")
        async with Server(answer, self.secrets) as server:
            self.environment._interception = server
            context = ModelContext("policy", EvalClientConfig(api_key_var="NONE"))
            episode = await self.environment.run_episode(self.tasks[row["task"]], context, on_trace=traces.append)
        if not episode.ok:
            # What failed in a trace may be the cause of what failed in the episode.
            errors = [*(error for trace in episode.traces for error in trace.errors), *episode.errors]
            raise RuntimeError(reason(errors[0].message))
        return next(trace.reward for trace in episode.traces if trace.agent.name == learner)


def serve(environment: vf.Env) -> None:
    """Start what all episodes share, tool servers among it; the end of this process stops it."""
    for key in ("NO_PROXY", "no_proxy"):  # the package reaches its servers, on this machine, through any proxy
        os.environ[key] = ",".join(filter(None, [os.environ.get(key), "127.0.0.1", "localhost"]))
    started: Future[Callable[[], Any]] = Future()

    async def run() -> None:
        loop, ending = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with environment.shared_tools() as environment._shared_tools:
                try:
                    await environment.start()
                    started.set_result(lambda: loop.call_soon_threadsafe(ending.set))
                    await ending.wait()
                finally:
                    await environment.stop()
        except BaseException as error:  # of any kind, SystemExit too
            if started.done():
                raise
            started.set_exception(RuntimeError(reason(str(error))))

    def stop() -> None:
        end()
        thread.join(STOP_SECONDS)

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    end = started.result()
    threading._register_atexit(stop)  # atexit is too late: executors, which servers and `stop` may need, have ended


def reason(error: str) -> str:
    """An error with only the last line of its traceback."""
    text, traceback, _ = error.partition("Traceback (most recent call last):")
    return text + error.strip().splitlines()[-1] if traceback else error


def allow_files(count: int) -> None:
    """Let this process have so many open files, if its hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
