"""``POST /v1/responses``: OpenAI's newer API, as far as it is text and keeps no state."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from headstart.server.chat_words import check_choice
from headstart.server.conversation import Answer, Conversation, answer
from headstart.server.front import Front, require_json
from headstart.server.response_events import ResponseEvents
from headstart.server.response_snapshots import Snapshots
from headstart.server.responses_input import chat_messages, chat_tool_choice, chat_tools
from headstart.server.responses_protocol import ResponsesRequest
from headstart.server.responses_replies import Numbered, ResponseReply
from headstart.server.streaming import EVENTS, EventStream, json_response, until_disconnect


def router(front: Front) -> APIRouter:
    """The responses route of ``front``."""
    routes = APIRouter(dependencies=[Depends(require_json)], tags=["Generation"])

    @routes.post("/v1/responses", response_model=ResponseReply, responses=EVENTS, summary="Answer an input")
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        """Answer an input, whole or (``stream``) in events as it is generated.  Nothing is stored."""
        ticket = front.admit(body, request, "resp_")
        params = body.sampling(front.tokenizer.eos_token_ids)
        started = await answer(front, _conversation(body), params, ticket, shorten=True)
        snapshots = Snapshots(front, ticket, body, started.generation)
        if body.stream:
            events = ResponseEvents(snapshots)
            return EventStream(_events(events, started), failed=events.fail, last=b"")
        return json_response(await until_disconnect(request.receive, _whole(snapshots, started)))

    return routes


def _conversation(body: ResponsesRequest) -> Conversation:
    conversation = Conversation(
        messages=chat_messages(body.instructions, body.input),
        tools=chat_tools(body.tools) if body.tools else None,
        tool_choice=chat_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        origin="input",
    )
    return check_choice(conversation)


async def _whole(snapshots: Snapshots, started: Answer) -> ResponseReply:
    await snapshots.blocks.take_all(started.pieces())
    return snapshots.finished()


async def _events(events: ResponseEvents, started: Answer) -> AsyncGenerator[Numbered, None]:
    async with aclosing(started.pieces()) as pieces:
        for event in events.begin():
            yield event
        async for piece in pieces:
            for event in events.take(piece):
                yield event
        yield events.end()
