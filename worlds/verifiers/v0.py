"""Environments of verifiers before 0.4: `load_environment` of an installed module."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from worlds.verifiers.problems import HELD_OUT, MOST, Chat, split
from worlds.verifiers.tools import offer, read_calls

import verifiers
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage, ToolCall


class Adapter:
    def __init__(self, task: str) -> None:
        self.environment = verifiers.load_environment(task)

    def rows(self) -> tuple[list[Any], list[Any]]:
        """(prompt, row) for training and held out."""
        held_out = None
        if getattr(self.environment, "eval_dataset", None) is not None:
            held_out = self.with_prompts(self.environment.get_eval_dataset(HELD_OUT))
        return split(self.with_prompts(self.environment.get_dataset(MOST)), held_out)

    def with_prompts(self, rows: Iterable[Any]) -> list[tuple[str | Chat, dict[str, Any]]]:
        """Prompts as text, or as messages with nothing but role and content, and with the environment's tools."""
        tools = [wire(tool) for tool in self.environment.tool_defs or []]

        def chat(row: Any) -> str | Chat:
            if isinstance(row["prompt"], str):
                return row["prompt"]
            if "tool_defs" in (row.get("info") or {}):
                raise ValueError("its rows have tools of their own, which are not supported")
            return offer([{k: m[k] for k in ("role", "content")} for m in row["prompt"]], tools)

        return [(chat(row), dict(row)) for row in rows]

    async def rollout(self, row: dict[str, Any], respond: Callable[[Chat, list[Any]], Awaitable[str]]) -> float:
        class Policy(Client):
            """A client whose responses are the policy's turns."""

            async def get_response(self, prompt: Any, model: str, tools: Any = None, **kwargs: Any) -> Response:
                chat = [{"role": message.role, "content": message.content} for message in prompt]
                text, found = read_calls(await respond(chat, tools or []), chat, tools)
                calls = [ToolCall(**call) for call in found]
                turn = ResponseMessage(content=text, tool_calls=calls or None, finish_reason="stop", is_truncated=False)
                return Response(id="", created=0, model=model, message=turn)

        Policy.__abstractmethods__ = frozenset()  # the methods with which the package's own clients use a server
        state = await self.environment.rollout(row, Policy(None), "policy")
        if state["error"]:
            raise state["error"]
        await self.environment.rubric.score_rollout(state)
        return state["reward"]


def wire(tool: Any) -> dict[str, Any]:
    """A tool as OpenAI describes it."""
    about = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": about}
