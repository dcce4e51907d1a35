"""The events of a streamed response, numbered and in OpenAI's order.

::

    response.created, response.in_progress
    response.output_item.added                       for each item
      response.content_part.added                      of a message: its one part
      response.output_text.delta …
      response.output_text.done, response.content_part.done
      response.function_call_arguments.delta …         of a call
      response.function_call_arguments.done
    response.output_item.done
    response.completed or response.incomplete        or error and response.failed
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headstart.server.blocks import Change, TextBlock
from headstart.server.choice import Piece
from headstart.server.errors import describe
from headstart.server.logprobs import for_chat
from headstart.server.response_snapshots import Snapshots
from headstart.server.responses_replies import (
    ArgumentsDelta,
    ArgumentsDone,
    ErrorEvent,
    ItemEvent,
    LifeEvent,
    Numbered,
    OutputText,
    PartEvent,
    ResponseReply,
    TextDelta,
    TextDone,
)


class ResponseEvents:
    """Tells what becomes of a response."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._count = 0

    def begin(self) -> Iterator[Numbered]:
        """Before anything is said."""
        for kind in ("created", "in_progress"):
            yield self._life(kind, self._snapshots.begun())

    def take(self, piece: Piece) -> Iterator[Numbered]:
        """What the piece says."""
        for change in self._snapshots.blocks.take(piece):
            yield from self._told(change)

    def end(self) -> Numbered:
        """When all has been said."""
        reply = self._snapshots.finished()
        return self._life(reply.status, reply)

    def fail(self, error: Exception) -> Iterator[Numbered]:
        """When it failed on the way."""
        told = describe(error)[1].error
        yield ErrorEvent(**self._head("error"), code=told.code, message=told.message, param=told.param)
        yield self._life("failed", self._snapshots.failed(told.message))

    def _told(self, change: Change) -> Iterator[Numbered]:
        match change.kind:
            case "opened":
                yield from self._opened(change)
            case "grown":
                yield self._grown(change)
            case "closed":
                yield from self._closed(change)

    def _opened(self, change: Change) -> Iterator[Numbered]:
        block = change.block
        item = self._snapshots.item(block, "in_progress")
        yield ItemEvent(**self._head("response.output_item.added"), output_index=block.index, item=item)
        if isinstance(block, TextBlock):
            part = OutputText(type="output_text", text="", annotations=[], logprobs=[])
            yield PartEvent(**self._of(change, "response.content_part.added"), content_index=0, part=part)

    def _grown(self, change: Change) -> Numbered:
        if isinstance(change.block, TextBlock):
            head = self._of(change, "response.output_text.delta")
            told = for_chat(change.tokens).content
            return TextDelta(**head, content_index=0, delta=change.delta, logprobs=told)
        head = self._of(change, "response.function_call_arguments.delta")
        return ArgumentsDelta(**head, delta=change.delta)

    def _closed(self, change: Change) -> Iterator[Numbered]:
        block = change.block
        if isinstance(block, TextBlock):
            part = self._snapshots.part(block)
            head = self._of(change, "response.output_text.done")
            yield TextDone(**head, content_index=0, text=part.text, logprobs=part.logprobs)
            yield PartEvent(**self._of(change, "response.content_part.done"), content_index=0, part=part)
        else:
            head = self._of(change, "response.function_call_arguments.done")
            yield ArgumentsDone(**head, name=block.name, arguments=block.arguments)
        item = self._snapshots.item(block)
        yield ItemEvent(**self._head("response.output_item.done"), output_index=block.index, item=item)

    def _life(self, kind: str, reply: ResponseReply) -> Numbered:
        return LifeEvent(**self._head(f"response.{kind}"), response=reply)

    def _of(self, change: Change, kind: str) -> dict[str, Any]:
        identity = self._snapshots.item_id(change.block)
        return {**self._head(kind), "item_id": identity, "output_index": change.block.index}

    def _head(self, kind: str) -> dict[str, Any]:
        number, self._count = self._count, self._count + 1
        return {"type": kind, "sequence_number": number}
