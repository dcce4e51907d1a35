"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from headstart.server.caller import caller_of
from headstart.server.choice import Piece
from headstart.server.conversation import Answer, Conversation, answer
from headstart.server.front import Front, Ticket, require_json
from headstart.server.generation import usage_of
from headstart.server.logprobs import for_chat
from headstart.server.protocol import ChatRequest, Message
from headstart.server.replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    ChatReply,
    Delta,
    EndReason,
    ReplyMessage,
)
from headstart.server.streaming import STREAMED, EventStream, json_response, until_disconnect


def router(front: Front) -> APIRouter:
    """The chat route of ``front``."""
    routes = APIRouter(dependencies=[Depends(require_json)], tags=["Generation"])

    @routes.post(
        "/v1/chat/completions", response_model=ChatReply, responses=STREAMED, summary="Answer a conversation"
    )
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation, whole or (``stream``) as it is generated."""
        ticket = front.admit(body, caller_of(request), "chatcmpl")
        params = body.sampling(front.tokenizer.eos_token_ids)
        started = await answer(front, conversation_of(body), params, ticket)
        if body.stream:
            return EventStream(_chunks(front, ticket, started, body))
        whole = _whole(front, ticket, started, body)
        return json_response(await until_disconnect(request.receive, whole))

    return routes


def conversation_of(body: ChatRequest) -> Conversation:
    """What the model is to continue."""
    return Conversation(
        messages=[_as_the_template_sees_it(message) for message in body.messages],
        add_generation_prompt=body.add_generation_prompt is not False,
        add_special_tokens=bool(body.add_special_tokens),
        variables=body.chat_template_kwargs or {},
    )


def _as_the_template_sees_it(message: Message) -> dict[str, Any]:
    """Templates know no developer: OpenAI's newer word for the system role."""
    role = "system" if message.role == "developer" else message.role
    name = {} if message.name is None else {"name": message.name}
    return {"role": role, "content": message.content, **name}


async def _whole(front: Front, ticket: Ticket, started: Answer, body: ChatRequest) -> ChatReply:
    generation = started.generation
    collected: defaultdict[int, list[Piece]] = defaultdict(list)
    async with aclosing(started.pieces()) as arriving:
        async for piece in arriving:
            collected[piece.index].append(piece)
    choices = []
    for index, pieces in sorted(collected.items()):
        finish_reason = pieces[-1].finish_reason
        assert finish_reason is not None
        text = "".join(piece.text for piece in pieces)
        message = ReplyMessage(role="assistant", content=text, refusal=None)
        tokens = [token for piece in pieces for token in piece.tokens]
        told = for_chat(tokens) if generation.tells_logprobs else None
        choice = ChatChoice(index=index, message=message, logprobs=told, finish_reason=finish_reason)
        if body.return_token_ids:
            choice.token_ids = [token for piece in pieces for token in piece.token_ids]
        choices.append(choice)
    reply = ChatReply(
        id=ticket.id,
        object="chat.completion",
        created=ticket.created,
        model=front.model,
        choices=choices,
        usage=usage_of([started.generation]),
    )
    if body.prompt_logprobs is not None:
        reply.prompt_logprobs = generation.prompt_logprobs(body.prompt_logprobs)
    if body.return_token_ids:
        reply.prompt_token_ids = list(generation.prompt)
    return reply


async def _chunks(
    front: Front, ticket: Ticket, started: Answer, body: ChatRequest
) -> AsyncGenerator[ChatChunk, None]:
    """Each choice's role with its first token, then text, and why it ended; last the usage if asked for."""
    head: dict[str, Any] = {
        "id": ticket.id,
        "object": "chat.completion.chunk",
        "created": ticket.created,
        "model": front.model,
    }

    def chunk(
        index: int,
        delta: Delta,
        finish_reason: EndReason | None = None,
        logprobs: ChatLogprobs | None = None,
        token_ids: tuple[int, ...] = (),
    ) -> ChatChunk:
        choice = ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=finish_reason)
        if body.return_token_ids:
            choice.token_ids = list(token_ids)
        told = ChatChunk(**head, choices=[choice])
        if body.include_usage:
            told.usage = usage_of([started.generation]) if body.continuous_usage else None
        return told

    begun: set[int] = set()
    async with aclosing(started.pieces()) as pieces:
        async for piece in pieces:
            if piece.index not in begun:
                first = chunk(piece.index, Delta(role="assistant", content=""))
                if body.return_token_ids and not begun:
                    first.prompt_token_ids = list(started.generation.prompt)
                yield first
                begun.add(piece.index)
            ids = piece.token_ids if body.return_token_ids else ()
            if piece.text or piece.tokens or ids:
                told = for_chat(piece.tokens) if piece.tokens else None
                yield chunk(piece.index, Delta(content=piece.text), logprobs=told, token_ids=ids)
            if piece.finish_reason:
                yield chunk(piece.index, Delta(), piece.finish_reason)
    if body.include_usage:
        yield ChatChunk(**head, choices=[], usage=usage_of([started.generation]))
