"""A request's body as the prompt that becomes of it: its parts in order, and where they lie."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from headstart.errors import RequestError
from headstart.lab.prompts.problem import Path, Unit
from headstart.lab.traces.texts import PromptReader


class Section(Enum):
    """Who shares a part: all requests, those of one conversation, or none."""

    HEAD = "head"
    HISTORY = "history"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Part:
    """A text of the body, or an image (``text`` is empty then).

    ``start`` is where it begins in the prompt; None if the prompt does not have it.
    """

    where: Path
    role: str
    section: Section
    text: str
    start: int | None = None
    is_media: bool = False


class Ruler:
    """Measures a prompt in tokens, or in characters where there is no tokenizer."""

    def __init__(self, text: str, encode: Callable[[str], Sequence[int]] | None) -> None:
        self.unit: Unit = "characters" if encode is None else "tokens"
        self._text, self._encode = text, encode
        self._ids = encode(text) if encode is not None else ()
        self.total = len(text) if encode is None else len(self._ids)
        self._known: dict[int, int] = {}

    def before(self, position: int) -> int:
        """How much of the prompt comes before this character and does not depend on it."""
        if self._encode is None:
            return position
        if position not in self._known:
            begun = self._encode(self._text[:position])
            pairs = enumerate(zip(begun, self._ids, strict=False))
            differ = (index for index, (ours, theirs) in pairs if ours != theirs)
            self._known[position] = next(differ, min(len(begun), len(self._ids)))
        return self._known[position]


@dataclass(frozen=True, slots=True)
class Body:
    """A body, read.  ``stable_end`` is where the last user's message begins: what comes before can be shared.

    A prompt of a single text (a completion's, or a chat's only message) has no such end: it is the
    prompt's own then.
    """

    fields: Mapping[str, Any]
    parts: list[Part]
    text: str
    ruler: Ruler
    stable_end: int
    is_single: bool

    def lost_behind(self, start: int, end: int) -> int:
        """What could be shared and cannot, if the characters from ``start`` to ``end`` vary."""
        return max(0, self.ruler.before(self.stable_end) - self.ruler.before(end)) if start < end else 0


def read_body(fields: Mapping[str, Any], reader: PromptReader | None, *, with_template: bool) -> Body:
    """The prompt of a body.

    ``with_template`` it is rendered as that model does; else in the order that all engines have in common:
    tools, then messages.  Raises ``RequestError`` for a body that is none.
    """
    parts, text = _laid_out(_parts(fields), fields.get("tools") or ())
    if with_template and reader is not None and not any(part.is_media for part in parts):
        text = reader.body_text(fields)
        parts = list(_located(parts, text))
    single = len([part for part in parts if part.text]) == 1 and parts[0].role not in _HEAD_ROLES
    last = [part.start for part in parts if part.section is Section.LAST and part.start is not None]
    ruler = Ruler(text, reader.tokens if reader is not None else None)
    return Body(fields, parts, text, ruler, len(text) if single or not last else min(last), single)


_HEAD_ROLES = frozenset({"system", "developer", "tools"})


def _parts(fields: Mapping[str, Any]) -> list[Part]:
    messages = fields.get("messages")
    if messages is None:
        prompt = fields.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1:
            prompt = prompt[0]
        if not isinstance(prompt, str):
            raise RequestError("a body needs messages, or a prompt that is a text", param="prompt")
        return [Part(("prompt",), "prompt", Section.LAST, prompt)]
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list of at least one message", param="messages")
    tools = fields.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RequestError("tools must be a list of objects", param="tools")
    parts = [
        Part((*path,), "tools", Section.HEAD, text)
        for number, tool in enumerate(tools)
        for path, text in _strings(tool, ("tools", number))
    ]
    users = [number for number, message in enumerate(messages) if _role(message, number) == "user"]
    last = users[-1] if users else len(messages)
    for number, message in enumerate(messages):
        role = _role(message, number)
        section = (
            Section.LAST if number >= last else Section.HEAD if role in _HEAD_ROLES else Section.HISTORY
        )
        parts += _of_message(message, number, role, section)
    return parts


def _role(message: Any, number: int) -> str:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str):
        raise RequestError(f"messages[{number}] must be an object with a role", param="messages")
    return role


def _of_message(message: Mapping[str, Any], number: int, role: str, section: Section) -> Iterator[Part]:
    where: Path = ("messages", number, "content")
    match message.get("content"):
        case str(text):
            yield Part(where, role, section, text)
        case list(pieces):
            for index, piece in enumerate(pieces):
                match piece:
                    case {"type": "text", "text": str(text)}:
                        yield Part((*where, index, "text"), role, section, text)
                    case {"type": str()}:
                        yield Part((*where, index), role, section, "", is_media=True)


def _strings(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """All texts in a JSON value, in order."""
    match value:
        case str():
            yield path, value
        case dict():
            for key, item in value.items():
                yield from _strings(item, (*path, key))
        case list():
            for number, item in enumerate(value):
                yield from _strings(item, (*path, number))


def _laid_out(parts: list[Part], tools: Sequence[Any]) -> tuple[list[Part], str]:
    """The parts with their starts, and a prompt: the tools as JSON, then the messages in ChatML."""
    text = "".join(f"{json.dumps(tool, ensure_ascii=False)}\n" for tool in tools)
    placed = list(_located([part for part in parts if part.role == "tools"], text))
    message: Path = ()
    for part in parts[len(placed) :]:
        if part.where[:2] != message and part.role != "prompt":
            text += f"{'<|im_end|>' if message else ''}\n<|im_start|>{part.role}\n"
            message = part.where[:2]
        placed.append(replace(part, start=len(text)))
        text += "<image>" if part.is_media else part.text
    return placed, text


def _located(parts: Sequence[Part], text: str) -> Iterator[Part]:
    """The parts with their starts in a rendered prompt, where they are found.

    Tools are looked for as JSON spells their texts, and messages without the blanks that templates trim.
    """
    cursors = {"tools": 0, "messages": 0, "prompt": 0}
    for part in parts:
        kind, trimmed = str(part.where[0]), part.text.strip()
        lead = len(part.text) - len(part.text.lstrip())
        spellings = [(part.text, 0), (trimmed, lead)]
        if part.role == "tools":
            spellings = [(json.dumps(part.text, ensure_ascii=plain)[1:-1], 0) for plain in (False, True)]
        found = ((text.find(spelling, cursors[kind]), spelling, shift) for spelling, shift in spellings)
        start, spelling, shift = next((one for one in found if one[1] and one[0] >= 0), (None, "", 0))
        if start is not None:
            cursors[kind] = start + len(spelling)
        yield replace(part, start=None if start is None else start - shift)


def dumped(value: Any) -> str:
    """JSON in one form, whatever order the keys had: to compare by."""
    return json.dumps(value, sort_keys=True)
