"""Anthropic's ``cache_control`` markers: where they are and what they ask for.

A marker stands behind a block.  In Anthropic's order of things tools come first, then the system's text,
then the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from headstart.engine.request import CacheTerms, Retention
from headstart.errors import RequestError, shown_json
from headstart.server.conversation import Conversation
from headstart.server.messages_input import conversation_of
from headstart.server.messages_protocol import AnthropicMessage, PromptRequest

MAX_MARKERS = 4
Ttl = Literal["5m", "1h"]
SECONDS = {"5m": 300.0, "1h": 3600.0}

OTHER = "~"
"""What a text behind a marker is replaced by, to see what does not depend on it."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker behind a block: its ``section``, and there the places of the message and of the block."""

    section: Literal["tools", "system", "messages"]
    message: int
    block: int
    ttl: Ttl


def markers_of(body: PromptRequest) -> list[Marker]:
    """All markers, in order.  Raises `RequestError` for more than `MAX_MARKERS`, or of another form."""
    found = list(_markers(body))
    if len(found) > MAX_MARKERS:
        raise RequestError(
            f"cache_control may be set on at most {MAX_MARKERS} blocks, got {len(found)}",
            param="cache_control",
            code="invalid_value",
        )
    return found


def kept_longer(terms: CacheTerms, markers: Sequence[Marker]) -> CacheTerms:
    """The terms of a request with these markers: its prompt is kept for the longest time that is asked for.

    That is the marked part and what follows it, since the engine keeps prompts as a whole.
    """
    seconds = max((SECONDS[marker.ttl] for marker in markers), default=0.0)
    asked = terms.retention or Retention(0.0)
    if terms.skip_writing or seconds <= asked.seconds:
        return terms
    return replace(terms, retention=replace(asked, seconds=seconds))


def _markers(body: PromptRequest) -> Iterator[Marker]:
    for index, tool in enumerate(body.tools or ()):
        if ttl := _ttl(tool.get("cache_control"), f"tools[{index}]"):
            yield Marker("tools", 0, index, ttl)
    for index, block in enumerate(body.system if isinstance(body.system, list) else ()):
        if ttl := _ttl(block.get("cache_control"), f"system[{index}]"):
            yield Marker("system", 0, index, ttl)
    for number, message in enumerate(body.messages):
        for index, block in enumerate(message.content if isinstance(message.content, list) else ()):
            if ttl := _ttl_within(block, f"messages[{number}].content[{index}]"):
                yield Marker("messages", number, index, ttl)
    if ttl := _ttl(body.cache_control, ""):  # behind all there is
        last = body.messages[-1].content
        yield Marker("messages", len(body.messages) - 1, len(last) - 1 if isinstance(last, list) else 0, ttl)


def _ttl_within(block: dict[str, Any], place: str) -> Ttl | None:
    """A marker on a block, or on one inside it, which counts as if it were on the block."""
    ttl = _ttl(block.get("cache_control"), place)
    inner = block.get("content")
    for index, part in enumerate(inner if isinstance(inner, list) else ()):
        if isinstance(part, dict):
            ttl = _ttl(part.get("cache_control"), f"{place}.content[{index}]") or ttl
    return ttl


def _ttl(control: Any, place: str) -> Ttl | None:
    match control:
        case None:
            return None
        case {"type": "ephemeral", "ttl": "1h"}:
            return "1h"
        case {"type": "ephemeral"} if control.get("ttl") in (None, "5m"):
            return "5m"
    field = f"{place}.cache_control" if place else "cache_control"
    allowed = '{"type": "ephemeral"}, with a ttl of 5m or 1h or without one'
    raise RequestError(
        f"{field} must be {allowed}, got {shown_json(control)}", param=field, code="invalid_value"
    )


def another_behind(body: PromptRequest, marker: Marker) -> Conversation:
    """A conversation that is the same up to the marker and another one behind it.

    Raises `RequestError` as `conversation_of`.
    """
    other = AnthropicMessage(role="user", content=OTHER)
    changes: dict[str, Any] = {"messages": [other], "tool_choice": None}
    match marker.section:
        case "tools":
            changes["tools"] = (body.tools or [])[: marker.block + 1]
            changes["system"] = None if body.system is None else OTHER
        case "system" if isinstance(body.system, list):
            behind = body.system[marker.block + 1 :]
            filler = [{"type": "text", "text": OTHER}] if behind else []
            changes["system"] = [*body.system[: marker.block + 1], *filler]
        case "messages":
            changes["messages"] = _cut(body.messages, marker)
    return conversation_of(body.model_copy(update=changes))


def _cut(messages: list[AnthropicMessage], marker: Marker) -> list[AnthropicMessage]:
    last = messages[marker.message]
    kept, blocks = messages[: marker.message], last.content
    if isinstance(blocks, list) and blocks[marker.block + 1 :]:
        content = [*blocks[: marker.block + 1], {"type": "text", "text": OTHER}]
        return [*kept, AnthropicMessage(role=last.role, content=content)]
    role: Literal["user", "assistant"] = "user" if last.role == "assistant" else "assistant"
    return [*kept, last, AnthropicMessage(role=role, content=OTHER)]
