"""Environments of verifiers 0.1 and 0.2: `load_environment` of an installed module."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from worlds.verifiers.problems import HELD_OUT, MOST, Chat, split

import verifiers
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage


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
        """Prompts as text, or as messages with nothing but role and content."""

        def chat(prompt: Any) -> str | Chat:
            return prompt if isinstance(prompt, str) else [{k: m[k] for k in ("role", "content")} for m in prompt]

        return [(chat(row["prompt"]), dict(row)) for row in rows]

    async def rollout(self, row: dict[str, Any], respond: Callable[[Chat], Awaitable[str]]) -> float:
        class Policy(Client):
            """A client whose responses are the policy's turns."""

            async def get_response(self, prompt: Any, model: str, *args: Any, **kwargs: Any) -> Response:
                text = await respond([{"content": message.content} for message in prompt])
                turn = ResponseMessage(content=text, finish_reason="stop", is_truncated=False)
                return Response(id="", created=0, model=model, message=turn)

        Policy.__abstractmethods__ = frozenset()  # the methods with which the package's own clients use a server
        state = await self.environment.rollout(row, Policy(None), "policy")
        if state["error"]:
            raise state["error"]
        await self.environment.rubric.score_rollout(state)
        return state["reward"]
