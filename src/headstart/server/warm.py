"""``POST /v1/cache/warm``: have a prompt's stable beginning computed and kept before anybody needs it."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from headstart.engine.request import SamplingParams
from headstart.errors import RequestError
from headstart.server.cache_usage import kept_tokens
from headstart.server.chat_conversation import conversation_of
from headstart.server.fields import ListOf, TokenIds, must_be
from headstart.server.front import Front, Ticket, require_json
from headstart.server.generation import Generation
from headstart.server.hints import IN_MEMORY_S, LONGEST_S
from headstart.server.protocol import MAX_MESSAGES, ChatRequest, Message
from headstart.server.stable import stable_text_tokens, stable_tokens
from headstart.server.streaming import json_response, until_disconnect


class WarmRequest(ChatRequest):
    """A chat's body, of which only what makes the prompt counts; or ``prompt``, a text or token ids.

    ``ttl_seconds`` is how long to keep it, if nothing pushes harder; 10 minutes unless something else is
    said, there or in OpenAI's words.
    """

    messages: Annotated[ListOf[Message], Field(max_length=MAX_MESSAGES)] = Field(default=[])
    prompt: Annotated[str | TokenIds | None, must_be("a text or a list of token ids")] = None
    ttl_seconds: Annotated[
        float | None, Field(strict=True, gt=0, le=LONGEST_S), must_be("a number above 0 and at most 86400")
    ] = None

    @property
    def retention_s(self) -> float:
        """Whoever warms wants it kept."""
        asked = super().retention_s if self.ttl_seconds is None else self.ttl_seconds
        return IN_MEMORY_S if asked is None else asked


class WarmReply(BaseModel):
    """What the prefix is made of, and what becomes of it.  Tokens, and seconds since 1970.

    ``cached_tokens`` of its ``prompt_tokens`` were there already; ``computed_tokens`` are the others, the
    last token always among them.  ``kept_tokens`` can be found now.  ``retained_tokens``, of whole blocks,
    are evicted after all else until ``retained_until``; 0 and null if there is no room for that.
    """

    id: str
    object: Literal["cache.warm"]
    created: int
    model: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    kept_tokens: int
    retained_tokens: int
    retained_until: int | None


def router(front: Front) -> APIRouter:
    """The route of ``front``."""
    routes = APIRouter(dependencies=[Depends(require_json)], tags=["Cache"])

    @routes.post("/v1/cache/warm", response_model=WarmReply, summary="Compute a prompt before it is needed")
    async def warm(body: WarmRequest, request: Request) -> Response:
        """Compute what every continuation of a prompt begins with, and keep it.  Generates nothing."""
        if bool(body.messages) == bool(body.prompt):
            raise RequestError(
                "give messages, as for a chat, or prompt, as for a completion: one of them, and not empty",
                param="prompt" if body.messages else "messages",
                code="invalid_value",
            )
        if body.skip_writing_prefix_cache:
            raise RequestError(
                "skip_writing_prefix_cache leaves nothing to be found: leave it out to warm the cache",
                param="skip_writing_prefix_cache",
                code="invalid_value",
            )
        ticket = front.admit(body, request, "warm-")
        params = SamplingParams(temperature=0.0, max_tokens=0)
        front.client.check_queue(params)  # before the work of finding out what is stable
        prompt = await _stable(front, body, ticket)
        origin = "prompt" if body.prompt else "messages"
        generation = front.generate(prompt, params, ticket, prompt_field=origin)
        return json_response(await until_disconnect(request.receive, _whole(front, ticket, generation)))

    return routes


async def _stable(front: Front, body: WarmRequest, ticket: Ticket) -> list[int]:
    if isinstance(body.prompt, list):
        return body.prompt  # more ids may follow; those that are there stay as they are
    if body.prompt is not None:
        special = body.add_special_tokens is not False
        return await stable_text_tokens(front, body.prompt, special=special)
    return await stable_tokens(front, conversation_of(body), ticket.caller)


async def _whole(front: Front, ticket: Ticket, generation: Generation) -> WarmReply:
    async for _ in generation.pieces():  # there is no text
        pass
    asked, retained = ticket.terms.retention, generation.num_retained_tokens
    return WarmReply(
        id=ticket.id,
        object="cache.warm",
        created=ticket.created,
        model=front.model,
        prompt_tokens=generation.num_prompt_tokens,
        cached_tokens=generation.num_cached_tokens,
        computed_tokens=generation.num_prompt_tokens - generation.num_cached_tokens,
        kept_tokens=kept_tokens(front.client.info, generation.num_prompt_tokens),
        retained_tokens=retained,
        retained_until=int(time.time() + asked.seconds) if asked is not None and retained else None,
    )
