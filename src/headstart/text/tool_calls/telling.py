"""Tools for models whose chat template knows nothing of them: all is said in messages, in Hermes' form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headstart.text.tool_calls.hermes import BEGIN, FINISH

_INSTRUCTIONS = """You can call these functions, each of which is described by a JSON object:
<tools>
{tools}
</tools>

To call one, write its name and its arguments as a JSON object between tags, like this:
{begin}
{{"name": <name>, "arguments": <object>}}
{finish}"""


def tell_of_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """The messages with the tools in the system message, and calls and their results as text.

    Results come in a user's message, all of one turn in one, since many templates want user and assistant
    to take turns.
    """
    told: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            result = f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"
            if told and _is_result(told[-1]):
                told[-1]["content"] += f"\n{result}"
            else:
                told.append({"role": "user", "content": result})
        elif isinstance(calls := message.get("tool_calls"), list) and calls:
            others = {name: value for name, value in message.items() if name != "tool_calls"}
            parts = [message.get("content") or "", *map(_written, calls)]
            told.append({**others, "content": "\n".join(filter(None, parts))})
        else:
            told.append(dict(message))
    return _with_tools(told, tools) if tools else told


def _is_result(message: Mapping[str, Any]) -> bool:
    return message["role"] == "user" and str(message.get("content")).startswith("<tool_response>")


def _written(call: Any) -> str:
    """A call between tags; one from a log that has another form than OpenAI's, as it is."""
    match call:
        case {"function": {"name": name, "arguments": arguments}}:
            said: Any = {"name": name, "arguments": arguments}
        case _:
            said = call
    return f"{BEGIN}\n{json.dumps(said, ensure_ascii=False)}\n{FINISH}"


def _with_tools(messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    instructions = _INSTRUCTIONS.format(tools=listed, begin=BEGIN, finish=FINISH)
    if messages and messages[0]["role"] == "system":
        first, *others = messages
        said = f"{first['content']}\n\n" if first.get("content") else ""
        return [{**first, "content": said + instructions}, *others]
    return [{"role": "system", "content": instructions}, *messages]
