"""ShareGPT conversations: each turn of the human is a request, with all that was said before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from headstart.lab.traces.draft import Draft
from headstart.lab.traces.fields import told
from headstart.lab.traces.source import Source
from headstart.lab.traces.tokenising import Pending, tokenised

_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model", "assistant"), "assistant"),
    "system": "system",
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
}


class _Turn(msgspec.Struct):
    """One turn, in ShareGPT's words or in OpenAI's."""

    speaker: str | None = msgspec.field(default=None, name="from")
    value: str | None = None
    role: str | None = None
    content: str | None = None

    def message(self) -> dict[str, Any]:
        """In OpenAI's words.  Raises ``ValueError``."""
        who = self.speaker if self.speaker is not None else self.role
        said = self.value if self.value is not None else self.content
        role = _ROLES.get((who or "").lower())
        if role is None or said is None:
            raise ValueError(f"a turn is from {', '.join(_ROLES)} and has a text")
        return {"role": role, "content": said}


class _Conversation(msgspec.Struct):
    conversations: list[_Turn] | None = None
    conversation: list[_Turn] | None = None
    id: str | int | None = None
    conversation_id: str | int | None = None


def read_sharegpt(source: Source) -> Iterator[Draft]:
    """The requests of a file, one conversation after the other; nothing tells their times."""
    return tokenised(_pending(source), source)


def _pending(source: Source) -> Iterator[Pending]:
    decode = msgspec.json.Decoder(_Conversation).decode
    for line, data in source.records:
        try:
            turns = list(_turns(line, decode(data)))
        except (msgspec.DecodeError, RecursionError) as error:
            source.skip(line, told(error))
        except ValueError as error:
            source.skip(line, str(error))
        else:
            yield from turns


def _turns(line: int, told: _Conversation) -> Iterator[Pending]:
    messages = [turn.message() for turn in told.conversations or told.conversation or []]
    if not any(message["role"] == "user" for message in messages):
        raise ValueError("nobody asks anything in this conversation")
    name = told.id if told.id is not None else told.conversation_id
    session = f"line {line}" if name is None else str(name)
    for number, message in enumerate(messages):
        after = messages[number + 1] if number + 1 < len(messages) else None
        if message["role"] != "user" or (after is not None and after["role"] == "user"):
            continue  # who asks twice in a row is answered once
        answer = after["content"] if after is not None and after["role"] == "assistant" else None
        body = {"messages": messages[: number + 1]}
        yield Pending(Draft(line, b"", 0, session=session, body=body), answer or None)
