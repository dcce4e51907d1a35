"""What a body of `/v1/messages` says, in the words of a chat.

So the same conversation gives the same tokens there and here, and hits what the other left in the cache.
Of each block only what the model shall read is taken: no ``cache_control`` ever gets into a prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from headstart.errors import shown_json
from headstart.server.chat_words import chat_tool, check_choice, invalid
from headstart.server.conversation import AUTO, Conversation, ToolChoice
from headstart.server.messages_protocol import PromptRequest

IGNORED_BLOCKS = ("thinking", "redacted_thinking")  # of other models


def conversation_of(body: PromptRequest) -> Conversation:
    """The conversation; an assistant's message at its end is to be gone on with.

    Raises `RequestError` that names the place at fault.
    """
    choice = body.tool_choice or {}
    is_open = body.messages[-1].role == "assistant"
    messages = _messages(body)
    if is_open and messages[-1].get("tool_calls"):
        raise invalid("messages", "must not end with a tool_use: send its tool_result")
    conversation = Conversation(
        messages=messages,
        tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())] or None,
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=choice.get("disable_parallel_tool_use") is not True,
        add_generation_prompt=not is_open,
        continue_final_message=is_open,
    )
    return check_choice(conversation)


def _messages(body: PromptRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if isinstance(body.system, str):
        messages.append({"role": "system", "content": body.system})
    elif body.system:
        messages.append({"role": "system", "content": _texts(body.system, "system")})
    for index, message in enumerate(body.messages):
        place = f"messages[{index}].content"
        if isinstance(message.content, str):
            messages.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            messages.append(_assistants(message.content, place))
        else:
            messages += _users(message.content, place)
    return messages


def _users(blocks: list[dict[str, Any]], place: str) -> Iterable[dict[str, Any]]:
    """Results of tools have a role of their own; what is said between them is the user's."""
    said: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            said.append(_text(block, f"{place}[{index}]"))
            continue
        if said:
            yield {"role": "user", "content": said}
            said = []
        identity, content = block.get("tool_use_id"), block.get("content", "")
        if not isinstance(identity, str):
            raise invalid(f"{place}[{index}].tool_use_id", f"must be a string, got {shown_json(identity)}")
        if not isinstance(content, str):
            content = _texts(content, f"{place}[{index}].content")
        yield {"role": "tool", "tool_call_id": identity, "content": content}
    if said:
        yield {"role": "user", "content": said}


def _assistants(blocks: list[dict[str, Any]], place: str) -> dict[str, Any]:
    said, calls = [], []
    for index, block in enumerate(blocks):
        match block:
            case {"type": "tool_use", "id": str(identity), "name": str(name), "input": dict(given)}:
                function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
                calls.append({"id": identity, "type": "function", "function": function})
            case {"type": "tool_use"}:
                raise invalid(f"{place}[{index}]", "must have an id and a name, strings, and an input object")
            case {"type": kind} if kind in IGNORED_BLOCKS:
                pass
            case _:
                said.append(_text(block, f"{place}[{index}]"))
    message: dict[str, Any] = {"role": "assistant", "content": said or ""}
    return {**message, "tool_calls": calls} if calls else message


def _texts(blocks: Any, place: str) -> list[dict[str, Any]]:
    if not isinstance(blocks, list):
        raise invalid(place, f"must be a string or a list of text blocks, got {shown_json(blocks)}")
    return [_text(block, f"{place}[{index}]") for index, block in enumerate(blocks)]


def _text(block: Any, place: str) -> dict[str, Any]:
    match block:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
    allowed = 'text, like {"type": "text", "text": "…"}, since the model reads nothing else here'
    raise invalid(place, f"must be {allowed}; got {shown_json(block)}")


def _tool(tool: dict[str, Any], place: str) -> dict[str, Any]:
    if (kind := tool.get("type") or "custom") != "custom":
        raise invalid(
            f"{place}.type", f"must be custom, since no other tool is run here; got {shown_json(kind)}"
        )
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise invalid(f"{place}.input_schema", f"must be an object, got {shown_json(schema)}")
    description = tool.get("description")
    told = {} if description is None else {"description": description}
    return chat_tool({"name": tool.get("name"), **told, "parameters": schema}, place)


def _tool_choice(choice: dict[str, Any] | None) -> ToolChoice:
    match choice:
        case None | {"type": "auto"}:
            return AUTO
        case {"type": "any"}:
            return ToolChoice("required")
        case {"type": "none"}:
            return ToolChoice("none")
        case {"type": "tool", "name": str(name)}:
            return ToolChoice("required", (name,))
    allowed = 'of type auto, any, none or tool, like {"type": "tool", "name": "…"}'
    raise invalid("tool_choice", f"must be {allowed}; got {shown_json(choice)}")
