"""What the other APIs' bodies have to be checked for on their way into a chat's words."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from headstart.errors import RequestError, shown
from headstart.server.conversation import Conversation
from headstart.server.tool_fields import FunctionTool


def invalid(place: str, complaint: str) -> RequestError:
    """An error that names a place in the body and says what is wrong there."""
    return RequestError(f"{place} {complaint}", param=place, code="invalid_value")


def chat_tool(function: dict[str, Any], place: str) -> dict[str, Any]:
    """A chat's tool.  Raises `RequestError` unless its name and all else are what they must be."""
    tool = {"type": "function", "function": function}
    try:
        FunctionTool.model_validate(tool)
    except ValidationError as error:
        at = error.errors()[0]["loc"][-1]
        if at == "name":
            raise invalid(f"{place}.name", "must be 1 to 128 letters, digits and _ . : / -") from None
        raise invalid(place, f"must be a function, but its {at} is of another type") from None
    return tool


def check_choice(conversation: Conversation) -> Conversation:
    """The conversation.  Raises `RequestError` if a tool must be called that is not there."""
    choice = conversation.tool_choice
    known = [tool["function"]["name"] for tool in conversation.tools or ()]
    if choice.mode == "required" and not known:
        raise invalid("tool_choice", "asks for a tool, but there are no tools")
    for name in choice.names or ():
        if name not in known:
            raise invalid("tool_choice", f"names {shown(name)}, which is not among the tools: {shown(known)}")
    return conversation
