"""``POST /v1/cache/explain``: why one of the caller's own requests missed, in words and numbers."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from headstart.cache import MissReason, MissReport
from headstart.errors import RequestError, shown
from headstart.server.caller import caller_of
from headstart.server.fields import must_be
from headstart.server.front import Front, require_json
from headstart.server.streaming import json_response

PENDING = (
    "a report comes shortly after a prompt's first token; there is none for a prompt that got no token, nor "
    "with --no-explain-misses"
)


class Words(NamedTuple):
    """What a reason means, and what can be done about it."""

    meaning: str
    advice: str


# docs/misses.md at length.  No client is told of `isolated`.
WORDS = {
    MissReason.SKIPPED: Words(
        "nothing was looked up: the request does not read the cache, or caching is off",
        "leave out skip_reading_prefix_cache and prompt_logprobs where they are not needed",
    ),
    MissReason.LAST_TOKEN: Words(
        "the prompt's last token is always computed: its logits choose the first token of the answer",
        "nothing to do",
    ),
    MissReason.UNALIGNED: Words(
        "equal to cached tokens, but inside a block or an image that is shared only as a whole",
        "serve with --prefix-index radix or a smaller --block-size, or share longer beginnings",
    ),
    MissReason.IN_FLIGHT: Words(
        "another request with the same beginning was being computed and was not that far",
        "send the first of many alike alone, or warm the cache with POST /v1/cache/warm",
    ),
    MissReason.EVICTED: Words(
        "it was cached and had to make room",
        "ask for retention (prompt_cache_key, prompt_cache_retention), or serve with more KV memory",
    ),
    MissReason.DIVERGED: Words(
        "the text is cached behind another beginning: a hit is a prefix, and something before it differs",
        "look at the first difference, and move what changes (a time, an id, a name) to the end",
    ),
    MissReason.COLD: Words(
        "not seen before, as far as is remembered",
        "new text costs what it costs; what is known beforehand can be warmed",
    ),
}


class ExplainRequest(BaseModel):
    """The body: the ``id`` of an answer."""

    request_id: Annotated[
        Annotated[str, Field(min_length=1, max_length=256)],
        must_be("the id of an answer, a string of 1 to 256 characters"),
    ]


class Reason(BaseModel):
    """So many tokens missed for this reason."""

    reason: str
    tokens: int
    meaning: str
    advice: str


class PromptExplained(BaseModel):
    """One prompt of the request; all but the first two fields only once it is reported.

    Hits and the reasons' tokens add up to the prompt's.
    """

    index: int
    status: Literal["complete", "pending"]
    prompt_tokens: int
    hit_tokens: int
    missed_tokens: int
    reasons: list[Reason]
    first_difference_at: int | None
    evicted_s: float | None


class ExplainReply(BaseModel):
    """The answer; ``note`` says why something is pending."""

    object: Literal["cache.explanation"]
    request_id: str
    status: Literal["complete", "pending"]
    prompts: list[PromptExplained]
    note: str


def router(front: Front) -> APIRouter:
    """The route of ``front``."""
    routes = APIRouter(dependencies=[Depends(require_json)])

    @routes.post("/v1/cache/explain", response_model=ExplainReply)
    async def explain(body: ExplainRequest, request: Request) -> Response:
        """Why the prompts of one of your requests missed."""
        found = front.explanations.find(caller_of(request).tenant, body.request_id)
        if found is None:  # whether it never was, is another's or is forgotten
            raise RequestError(
                f"none of your requests among the last {front.explanations.most:,} prompts has the id "
                f"{shown(body.request_id)}",
                param="request_id",
                code="request_not_found",
                status=404,
            )
        prompts = [_prompt(number, report) for number, report in sorted(found.prompts.items())]
        pending = any(report is None for report in found.prompts.values())
        reply = ExplainReply.model_construct(
            object="cache.explanation",
            request_id=body.request_id,
            status="pending" if pending else "complete",
            prompts=prompts,
        )
        if pending:
            reply.note = PENDING
        return json_response(reply)

    return routes


def _prompt(number: int, report: MissReport | None) -> PromptExplained:
    if report is None:
        return PromptExplained.model_construct(index=number, status="pending")
    return PromptExplained(
        index=number,
        status="complete",
        prompt_tokens=report.num_prompt_tokens,
        hit_tokens=report.num_hit_tokens,
        missed_tokens=report.num_prompt_tokens - report.num_hit_tokens,
        reasons=[
            Reason(reason=reason.value, tokens=tokens, **WORDS[reason]._asdict())
            for reason, tokens in sorted(report.tokens.items(), key=lambda item: -item[1])
        ],
        first_difference_at=report.diverged_at,
        evicted_s=report.evicted_s,
    )
