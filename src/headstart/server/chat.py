"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from headstart.engine.request import FinishReason
from headstart.errors import RequestError
from headstart.server.choice import Piece
from headstart.server.front import Front, Ticket, require_json
from headstart.server.generation import Generation, usage_of
from headstart.server.logprobs import for_chat
from headstart.server.protocol import ChatRequest, Message
from headstart.server.replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    ChatReply,
    Delta,
    ReplyMessage,
)
from headstart.server.streaming import EventStream, json_response, until_disconnect

# `ChatTemplate.render`'s own arguments, which chat_template_kwargs must not touch.
RESERVED_VARIABLES = {"self", "messages", "tools", "add_generation_prompt"}


def router(front: Front) -> APIRouter:
    """The chat route of ``front``."""
    routes = APIRouter(dependencies=[Depends(require_json)])

    @routes.post("/v1/chat/completions", response_model=ChatReply)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation, whole or (``stream``) as it is generated."""
        ticket = front.admit(body, "chatcmpl")
        params = body.sampling(front.tokenizer.eos_token_ids)
        text = await asyncio.to_thread(_render, front, body)  # the model's template may take its time
        # Templates write a model's special tokens themselves.
        prompt = await front.encode(text, add_special_tokens=bool(body.add_special_tokens), field="messages")
        generation = front.generate(prompt, params, ticket, prompt_field="messages")
        if body.stream:
            return EventStream(_chunks(front, ticket, generation, include_usage=body.include_usage))
        whole = _whole(front, ticket, generation, body.prompt_logprobs)
        return json_response(await until_disconnect(request.receive, whole))

    return routes


def _render(front: Front, body: ChatRequest) -> str:
    """The conversation as the text that the model was trained on."""
    if front.template is None:
        raise RequestError(
            f"the model {front.model!r} has no chat template; send a prompt to /v1/completions instead",
            param="messages",
            code="no_chat_template",
        )
    variables = body.chat_template_kwargs or {}
    if reserved := RESERVED_VARIABLES & variables.keys():
        raise RequestError(
            f"chat_template_kwargs must not set {', '.join(sorted(reserved))}: they are fields of their own",
            param="chat_template_kwargs",
            code="invalid_value",
        )
    return front.template.render(
        [_as_the_template_sees_it(message) for message in body.messages],
        add_generation_prompt=body.add_generation_prompt is not False,
        **variables,
    )


def _as_the_template_sees_it(message: Message) -> dict[str, Any]:
    """Templates know no developer: OpenAI's newer word for the system role."""
    role = "system" if message.role == "developer" else message.role
    name = {} if message.name is None else {"name": message.name}
    return {"role": role, "content": message.content, **name}


async def _whole(
    front: Front, ticket: Ticket, generation: Generation, prompt_logprobs: int | None
) -> ChatReply:
    collected: defaultdict[int, list[Piece]] = defaultdict(list)
    async with aclosing(generation.pieces()) as arriving:
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
        choices.append(ChatChoice(index=index, message=message, logprobs=told, finish_reason=finish_reason))
    reply = ChatReply(
        id=ticket.id,
        object="chat.completion",
        created=ticket.created,
        model=front.model,
        choices=choices,
        usage=usage_of([generation]),
    )
    if prompt_logprobs is not None:
        reply.prompt_logprobs = generation.prompt_logprobs(prompt_logprobs)
    return reply


async def _chunks(
    front: Front, ticket: Ticket, generation: Generation, *, include_usage: bool
) -> AsyncGenerator[ChatChunk, None]:
    """Each choice's role with its first token, then text, and why it ended; last the usage if asked for."""
    head: dict[str, Any] = {
        "id": ticket.id,
        "object": "chat.completion.chunk",
        "created": ticket.created,
        "model": front.model,
    }
    no_usage_yet: dict[str, Any] = {"usage": None} if include_usage else {}

    def chunk(
        index: int,
        delta: Delta,
        finish_reason: FinishReason | None = None,
        logprobs: ChatLogprobs | None = None,
    ) -> ChatChunk:
        choice = ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=finish_reason)
        return ChatChunk(**head, choices=[choice], **no_usage_yet)

    begun: set[int] = set()
    async with aclosing(generation.pieces()) as pieces:
        async for piece in pieces:
            if piece.index not in begun:
                yield chunk(piece.index, Delta(role="assistant", content=""))
                begun.add(piece.index)
            if piece.text or piece.tokens:
                told = for_chat(piece.tokens) if piece.tokens else None
                yield chunk(piece.index, Delta(content=piece.text), logprobs=told)
            if piece.finish_reason:
                yield chunk(piece.index, Delta(), piece.finish_reason)
    if include_usage:
        yield ChatChunk(**head, choices=[], usage=usage_of([generation]))
