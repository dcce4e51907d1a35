"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's API, as far as it is text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from headstart.server.blocks import Blocks
from headstart.server.cache_markers import Marker, kept_longer, markers_of
from headstart.server.conversation import Answer, answer, prompt_of
from headstart.server.errors import ANTHROPIC_RESPONSES, describe_for_anthropic
from headstart.server.front import Front, Ticket, require_json
from headstart.server.message_events import content_of, ending_of, event_of
from headstart.server.message_usage import marked_tokens, usage_of
from headstart.server.messages_input import conversation_of
from headstart.server.messages_protocol import (
    Ending,
    MessageDelta,
    MessageReply,
    MessagesRequest,
    MessageStart,
    MessageUsage,
    PromptRequest,
    TokenCount,
)
from headstart.server.replies import Event
from headstart.server.streaming import EVENTS, EventStream, json_response, until_disconnect


def router(front: Front) -> APIRouter:
    """The messages routes of ``front``."""
    routes = APIRouter(
        dependencies=[Depends(require_json)], responses=ANTHROPIC_RESPONSES, tags=["Generation"]
    )

    @routes.post(
        "/v1/messages", response_model=MessageReply, responses=EVENTS, summary="Answer in Anthropic's API"
    )
    async def messages(body: MessagesRequest, request: Request) -> Response:
        """Answer a conversation, whole or (``stream``) in events as it is generated."""
        markers = markers_of(body)
        ticket = front.admit(body, request, "msg_")
        ticket = replace(ticket, terms=kept_longer(ticket.terms, markers))
        params = body.sampling(front.tokenizer.eos_token_ids)
        started = await answer(front, conversation_of(body), params, ticket, shorten=True)
        reply = _Reply(front, ticket, body, markers, started)
        if body.stream:
            return EventStream(reply.events(), failed=_failed, last=b"")
        return json_response(await until_disconnect(request.receive, reply.whole()))

    @routes.post("/v1/messages/count_tokens", summary="Count a prompt's tokens")
    async def count_tokens(body: PromptRequest) -> TokenCount:
        """How many tokens the model would read."""
        markers_of(body)  # are there to be checked
        if body.model is not None:
            front.check_model(body.model)
        return TokenCount(input_tokens=len(await prompt_of(front, conversation_of(body))))

    return routes


def _failed(error: Exception) -> list[Event]:
    return [describe_for_anthropic(error)[1]]


@dataclass(frozen=True, slots=True)
class _Reply:
    """A message on its way, whole or in events; one of both, once."""

    front: Front
    ticket: Ticket
    body: MessagesRequest
    markers: Sequence[Marker]
    started: Answer
    blocks: Blocks = field(default_factory=Blocks)

    async def whole(self) -> MessageReply:
        await self.blocks.take_all(self.started.pieces())
        reply = self._begun(await self._marked())
        reply.content = [content_of(block) for block in self.blocks.all]
        ending = self._ending()
        reply.stop_reason, reply.stop_sequence = ending.stop_reason, ending.stop_sequence
        return reply

    async def events(self) -> AsyncGenerator[Event, None]:
        """The message begins with its first token, when it is known what came from the cache."""
        marking = asyncio.create_task(self._marked())  # while the engine computes
        has_begun = False
        try:
            async with aclosing(self.started.pieces()) as pieces:
                async for piece in pieces:
                    if not has_begun:
                        yield MessageStart(type="message_start", message=self._begun(await marking))
                        yield Event(type="ping")
                        has_begun = True
                    for change in self.blocks.take(piece):
                        yield event_of(change)
            usage = self._usage(await marking)
            yield MessageDelta(type="message_delta", delta=self._ending(), usage=usage)
            yield Event(type="message_stop")
        finally:
            marking.cancel()

    async def _marked(self) -> dict[str, int]:
        if self.ticket.terms.skip_writing:
            return {}
        return await marked_tokens(self.front, self.body, self.markers, self.started.generation.prompt)

    def _usage(self, marked: dict[str, int]) -> MessageUsage:
        return usage_of(self.front, self.started.generation, marked)

    def _ending(self) -> Ending:
        return ending_of(self.blocks, self.started.generation, self.body.max_tokens)

    def _begun(self, marked: dict[str, int]) -> MessageReply:
        return MessageReply(
            id=self.ticket.id,
            type="message",
            role="assistant",
            model=self.front.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=self._usage(marked),
        )
