"""Tools in a chat: how they are described to the policy, and how it calls them. The form is that of Qwen 2.5."""

import json
import re
from typing import Any

from worlds.verifiers.problems import Chat

# The words of Qwen 2.5's chat template: it was trained with them.
OFFER = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def offer(chat: Chat, tools: list[dict[str, Any]]) -> Chat:
    """A chat whose system message describes the tools, each {"type": "function", "function": ...} as OpenAI has it."""
    if not tools:
        return chat
    text = OFFER.format("\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if chat and chat[0]["role"] == "system":
        return [{"role": "system", "content": f"{chat[0]['content']}\n\n{text}"}, *chat[1:]]
    return [{"role": "system", "content": text}, *chat]


def read_calls(turn: str, chat: Chat, tools: list[Any] | None) -> tuple[str, list[dict[str, str]]]:
    """The turn of a chat without its calls, and the id, name and arguments (JSON) of each.

    What cannot be read as a call stays in the turn.
    """
    calls: list[dict[str, str]] = []

    def read(found: re.Match[str]) -> str:
        match written(found[1]):
            case {"name": str(name), "arguments": dict(arguments)}:
                calls.append({"id": f"{len(chat)}-{len(calls)}", "name": name, "arguments": json.dumps(arguments)})
                return ""
        return found[0]

    text = CALL.sub(read, turn) if tools else turn
    return (text.strip() if calls else turn), calls


def written(text: str) -> Any:
    """What is written as JSON, or else nothing."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate cannot be sent
        return value
    except (ValueError, RecursionError):
        return None


def shown(message: dict[str, Any]) -> str:
    """A message of the environment as text: what a tool returns is marked, and an image is only named."""
    content = message["content"]
    if isinstance(content, list):
        content = "\n".join(part["text"] if part["type"] == "text" else f"[{part['type']}]" for part in content)
    return f"<tool_response>\n{content}\n</tool_response>" if message["role"] == "tool" else str(content)
