"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from headstart.server.chat_chunks import Chunks
from headstart.server.chat_conversation import conversation_of, echo_of
from headstart.server.choice import CallDelta, Piece
from headstart.server.conversation import Answer, answer
from headstart.server.front import Front, Ticket, require_json
from headstart.server.generation import usage_of
from headstart.server.logprobs import for_chat
from headstart.server.protocol import ChatRequest
from headstart.server.replies import (
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatEndReason,
    ChatReply,
    EndReason,
    ReplyMessage,
    ToolCall,
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
        ticket = front.admit(body, request, "chatcmpl-")
        params = body.sampling(front.tokenizer.eos_token_ids)
        started = await answer(front, conversation_of(body), params, ticket)
        if body.stream:
            return EventStream(_chunks(front, ticket, started, body))
        whole = _whole(front, ticket, started, body)
        return json_response(await until_disconnect(request.receive, whole))

    return routes


async def _whole(front: Front, ticket: Ticket, started: Answer, body: ChatRequest) -> ChatReply:
    generation = started.generation
    collected: defaultdict[int, list[Piece]] = defaultdict(list)
    async with aclosing(started.pieces()) as arriving:
        async for piece in arriving:
            collected[piece.index].append(piece)
    reply = ChatReply(
        id=ticket.id,
        object="chat.completion",
        created=ticket.created,
        model=front.model,
        choices=[_choice(index, pieces, started, body) for index, pieces in sorted(collected.items())],
        usage=usage_of([generation]),
    )
    if body.prompt_logprobs is not None:
        reply.prompt_logprobs = generation.prompt_logprobs(body.prompt_logprobs)
    if body.return_token_ids:
        reply.prompt_token_ids = list(generation.prompt)
    return reply


def _choice(index: int, pieces: list[Piece], started: Answer, body: ChatRequest) -> ChatChoice:
    """One answer, from all its pieces."""
    text = echo_of(body) + "".join(piece.text for piece in pieces)
    calls = _calls([delta for piece in pieces for delta in piece.calls])
    message = ReplyMessage(role="assistant", content=text if text or not calls else None, refusal=None)
    if calls and body.functions:
        message.function_call = calls[0].function
    elif calls:
        message.tool_calls = calls
    tokens = [token for piece in pieces for token in piece.tokens]
    choice = ChatChoice(
        index=index,
        message=message,
        logprobs=for_chat(tokens) if started.generation.tells_logprobs else None,
        finish_reason=_reason(pieces[-1].finish_reason, body),
    )
    if body.return_token_ids:
        choice.token_ids = [token for piece in pieces for token in piece.token_ids]
    return choice


def _calls(deltas: list[CallDelta]) -> list[ToolCall]:
    """The calls, put together from their parts."""
    calls: list[ToolCall] = []
    for delta in deltas:
        if delta.id is not None and delta.name is not None:
            function = CalledFunction(name=delta.name, arguments="")
            calls.append(ToolCall(id=delta.id, type="function", function=function))
        calls[-1].function.arguments += delta.arguments
    return calls


def _reason(reason: EndReason | None, body: ChatRequest) -> ChatEndReason:
    assert reason is not None
    return "function_call" if reason == "tool_calls" and body.functions else reason


async def _chunks(
    front: Front, ticket: Ticket, started: Answer, body: ChatRequest
) -> AsyncGenerator[ChatChunk, None]:
    """Each choice's role with its first token, then text and calls, and why it ended; last the usage."""
    write = Chunks(ticket, front.model, started.generation, body, opening=echo_of(body))
    async with aclosing(started.pieces()) as pieces:
        async for piece in pieces:
            for chunk in write.of(piece):
                yield chunk
            if piece.finish_reason is not None:
                yield write.end(piece.index, _reason(piece.finish_reason, body))
    if body.include_usage:
        yield write.usage()
