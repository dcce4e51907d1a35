"""The chunks of a streamed chat: one event each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headstart.server.choice import CallDelta, Piece
from headstart.server.front import Ticket
from headstart.server.generation import Generation, usage_of
from headstart.server.logprobs import for_chat
from headstart.server.protocol import ChatRequest
from headstart.server.replies import (
    ChatChunk,
    ChatChunkChoice,
    ChatEndReason,
    ChatLogprobs,
    Delta,
    FunctionDelta,
    ToolCallDelta,
)


class Chunks:
    """Writes the chunks of one reply; each answer begins with its role, and ``opening`` if there is any."""

    def __init__(
        self, ticket: Ticket, model: str, generation: Generation, body: ChatRequest, *, opening: str
    ) -> None:
        self._head: dict[str, Any] = {
            "id": ticket.id,
            "object": "chat.completion.chunk",
            "created": ticket.created,
            "model": model,
        }
        self._generation = generation
        self._body = body
        self._opening = opening
        self._begun: set[int] = set()

    def of(self, piece: Piece) -> Iterator[ChatChunk]:
        """What one piece brings.

        A chunk has one part of one call: clients put them together by their place in the list, too.
        """
        if piece.index not in self._begun:
            yield from self._beginning(piece.index)
            self._begun.add(piece.index)
        ids = piece.token_ids if self._body.return_token_ids else ()
        if piece.text or piece.tokens or ids:
            told = for_chat(piece.tokens) if piece.tokens else None
            text = Delta(content=piece.text) if piece.text or not self._body.offers_tools else Delta()
            yield self._chunk(piece.index, text, logprobs=told, token_ids=ids)
        for call in piece.calls:
            yield self._chunk(piece.index, self._call(call))

    def end(self, index: int, reason: ChatEndReason) -> ChatChunk:
        """Why an answer ended."""
        return self._chunk(index, Delta(), reason)

    def usage(self) -> ChatChunk:
        """The last of all."""
        return ChatChunk(**self._head, choices=[], usage=usage_of([self._generation]))

    def _beginning(self, index: int) -> Iterator[ChatChunk]:
        # Where calls may come instead of text, there may be no text, which is not the same as an empty one.
        first = self._chunk(index, Delta(role="assistant", content=None if self._body.offers_tools else ""))
        if self._body.return_token_ids and not self._begun:
            first.prompt_token_ids = list(self._generation.prompt)
        yield first
        if self._opening:
            yield self._chunk(index, Delta(content=self._opening))

    def _call(self, call: CallDelta) -> Delta:
        function = FunctionDelta(arguments=call.arguments)
        if call.name is not None:
            function = FunctionDelta(name=call.name, arguments=call.arguments)
        if self._body.functions:
            return Delta(function_call=function)
        if call.id is None:
            return Delta(tool_calls=[ToolCallDelta(index=call.number, function=function)])
        first = ToolCallDelta(index=call.number, id=call.id, type="function", function=function)
        return Delta(tool_calls=[first])

    def _chunk(
        self,
        index: int,
        delta: Delta,
        finish_reason: ChatEndReason | None = None,
        logprobs: ChatLogprobs | None = None,
        token_ids: tuple[int, ...] = (),
    ) -> ChatChunk:
        choice = ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=finish_reason)
        if self._body.return_token_ids:
            choice.token_ids = list(token_ids)
        told = ChatChunk(**self._head, choices=[choice])
        if self._body.include_usage:
            told.usage = usage_of([self._generation]) if self._body.continuous_usage else None
        return told
