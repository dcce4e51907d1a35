"""What a chat's body asks for, as a conversation."""

from __future__ import annotations

from typing import Any

from headstart.errors import RequestError, shown
from headstart.server.conversation import AUTO, Conversation, ToolChoice
from headstart.server.protocol import ChatRequest, Message
from headstart.server.tool_fields import AllowedToolsChoice, Choice, FunctionChoice, FunctionName, NamedTool

# Templates know neither: OpenAI's newer word for the system's role, and the older one for a tool's.
_ROLES = {"developer": "system", "function": "tool"}


def conversation_of(body: ChatRequest) -> Conversation:
    """What the model is to continue.

    Raises `RequestError` for fields that contradict each other.
    """
    if body.continue_final_message and body.add_generation_prompt:
        raise _refused(
            "continue_final_message",
            "and add_generation_prompt cannot both be true: a message is left open, or followed by another",
        )
    tools = _tools(body)
    effort = {} if body.reasoning_effort is None else {"reasoning_effort": body.reasoning_effort}
    return Conversation(
        messages=_messages(body.messages),
        tools=tools,
        tool_choice=_choice(body, tools),
        parallel_tool_calls=body.parallel_tool_calls is not False and not body.functions,
        add_generation_prompt=body.opens_a_turn,
        continue_final_message=bool(body.continue_final_message),
        add_special_tokens=bool(body.add_special_tokens),
        chat_template=body.chat_template,
        documents=body.documents,
        variables={**effort, **(body.chat_template_kwargs or {})},
    )


def echo_of(body: ChatRequest) -> str:
    """The text that the answer begins with: the last message's, if they are of one role and it is wanted."""
    last = body.messages[-1]
    if not body.echo or (body.opens_a_turn and last.role != "assistant"):
        return ""
    if isinstance(last.content, str):
        return last.content
    return "\n".join(str(part.get("text", "")) for part in last.content)


def _messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as templates know them.  A call in the older form has no id, so its number is one."""
    told = []
    latest = ""
    for number, message in enumerate(messages):
        one: dict[str, Any] = {"role": _ROLES.get(message.role, message.role), "content": message.content}
        for name in ("name", "reasoning_content", "tool_call_id"):
            if (value := getattr(message, name)) is not None:
                one[name] = value
        if message.tool_calls:
            one["tool_calls"] = [call.model_dump() for call in message.tool_calls]
        elif message.function_call is not None:
            latest = f"call{number:05}"
            function = message.function_call.model_dump()
            one["tool_calls"] = [{"id": latest, "type": "function", "function": function}]
        if message.role == "function":
            one.setdefault("tool_call_id", latest)
        told.append(one)
    return told


def _tools(body: ChatRequest) -> list[dict[str, Any]] | None:
    if body.tools and body.functions:
        raise _refused("functions", "is the older form of tools: leave one of them out")
    return body.tools or [{"type": "function", "function": one} for one in body.functions or ()] or None


def _choice(body: ChatRequest, tools: list[dict[str, Any]] | None) -> ToolChoice:
    """Whether tools are to be called, in the newer words or else in the older ones."""
    field = "function_call" if body.tool_choice is None else "tool_choice"
    given: Choice | FunctionChoice = getattr(body, field)
    match given:
        case None:
            return AUTO
        case "none" | "auto":
            return ToolChoice(given)
        case "required":
            choice = ToolChoice("required")
        case FunctionName():
            choice = ToolChoice("required", (given.name,))
        case NamedTool():
            choice = ToolChoice("required", (given.function.name,))
        case AllowedToolsChoice(allowed_tools=allowed):
            choice = ToolChoice(allowed.mode, tuple(tool.function.name for tool in allowed.tools))
    known = [tool["function"]["name"] for tool in tools or ()]
    if not known:
        raise _refused(field, "asks for a tool, but there are no tools")
    for name in choice.names or ():
        if name not in known:
            raise _refused(field, f"names {shown(name)}, which is not among the tools: {shown(known)}")
    return choice


def _refused(field: str, complaint: str) -> RequestError:
    return RequestError(f"{field} {complaint}", param=field, code="invalid_value")
