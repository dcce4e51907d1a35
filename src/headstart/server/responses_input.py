"""What a body of `/v1/responses` says, in the words of a chat.

So the same conversation gives the same tokens there and here, and hits what the other left in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headstart.engine.structured import StructuredOutputs
from headstart.errors import shown_json
from headstart.server.chat_words import chat_tool, invalid
from headstart.server.conversation import AUTO, ToolChoice

MAX_ITEMS = 10_000
MAX_TOOLS = 1024
TEXT_PARTS = ("input_text", "output_text", "text")
ROLES = ("user", "assistant", "system", "developer")


def chat_messages(instructions: str | None, items: str | Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation: ``instructions`` are the system's, and calls belong to what the assistant said.

    Raises `RequestError` that names the item at fault.
    """
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    for index, item in enumerate(items):
        place = f"input[{index}]"
        match item.get("type", "message"):
            case "message":
                messages.append(_message(item, place))
            case "function_call":
                _called(messages).append(_call(item, place))
            case "function_call_output":
                content = _content(item.get("output"), f"{place}.output")
                identity = _text(item, "call_id", place)
                messages.append({"role": "tool", "tool_call_id": identity, "content": content})
            case "reasoning":
                pass  # of other models: nobody's chat template shows it again
            case "item_reference":
                raise invalid(place, "refers to an item, but nothing is stored here: send the item itself")
            case kind:
                known = "message, function_call, function_call_output and reasoning"
                raise invalid(f"{place}.type", f"must be one of {known}, got {shown_json(kind)}")
    return messages


def _message(item: dict[str, Any], place: str) -> dict[str, Any]:
    role = item.get("role")
    if role not in ROLES:
        raise invalid(f"{place}.role", f"must be one of {', '.join(ROLES)}, got {shown_json(role)}")
    content = _content(item.get("content"), f"{place}.content")
    return {"role": "system" if role == "developer" else role, "content": content}


def _content(content: Any, place: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(place, f"must be a string or a list of parts, got {shown_json(content)}")
    parts = []
    for index, part in enumerate(content):
        match part:
            case {"type": kind, "text": str(text)} if kind in TEXT_PARTS:
                parts.append({"type": "text", "text": text})
            case {"type": "refusal", "refusal": str(text)}:
                parts.append({"type": "text", "text": text})
            case _:
                raise invalid(
                    f"{place}[{index}]",
                    'must be text, like {"type": "input_text", "text": "…"}, '
                    f"since the model reads nothing else; got {shown_json(part)}",
                )
    return parts


def _called(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls of the assistant's turn that is going on, or of a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    calls: list[dict[str, Any]] = messages[-1].setdefault("tool_calls", [])
    return calls


def _call(item: dict[str, Any], place: str) -> dict[str, Any]:
    name, arguments = _text(item, "name", place), _text(item, "arguments", place)
    function = {"name": name, "arguments": arguments}
    return {"id": _text(item, "call_id", place), "type": "function", "function": function}


def chat_tools(tools: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Functions as a chat's tools.  Raises `RequestError` for OpenAI's own tools, which only it can run."""
    functions = []
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if tool.get("type") != "function":
            kind = shown_json(tool.get("type"))
            raise invalid(f"{place}.type", f"must be function, since no other tool is run here; got {kind}")
        function = {name: value for name, value in tool.items() if name != "type" and value is not None}
        functions.append(chat_tool(function, place))
    return functions


def chat_tool_choice(choice: str | dict[str, Any] | None) -> ToolChoice:
    """Whether tools may or must be called.  Raises `RequestError` for what is no choice among functions."""
    match choice:
        case None:
            return AUTO
        case "none" | "auto" | "required":
            return ToolChoice(choice)
        case {"type": "function", "name": str(name)}:
            return ToolChoice("required", (name,))
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [*tools]}:
            return ToolChoice(mode, tuple(_text(tool, "name", "tool_choice.tools") for tool in tools))
    allowed = 'none, auto, required or {"type": "function", "name": "…"}'
    raise invalid("tool_choice", f"must be {allowed}, got {shown_json(choice)}")


def structured_outputs(wanted: dict[str, Any] | None) -> StructuredOutputs | None:
    """What the text must match by ``text.format``; None where it is free.

    Raises `RequestError` for a format that is none of OpenAI's.
    """
    origin = "text.format"
    match wanted:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return StructuredOutputs(json_object=True, origin=origin)
        case {"type": "json_schema", "schema": dict(schema)}:
            return StructuredOutputs(json=schema, lenient=not wanted.get("strict"), origin=origin)  # type: ignore[arg-type]
    allowed = '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "name": …, "schema": …}'
    raise invalid(origin, f"must be {allowed}, got {shown_json(wanted)}")


def _text(item: Any, name: str, place: str) -> str:
    value = item.get(name) if isinstance(item, dict) else None
    if not isinstance(value, str):
        raise invalid(f"{place}.{name}", f"must be a string, got {shown_json(value)}")
    return value
