"""``POST /v1/completions``: each prompt, text or token ids, gives ``n`` choices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from headstart.engine.request import SamplingParams
from headstart.server.choice import Echo, Piece
from headstart.server.front import Front, Ticket, require_json
from headstart.server.generation import Generation, merged, usage_of
from headstart.server.logprobs import for_completion
from headstart.server.protocol import COMPLETION_MAX_TOKENS, CompletionRequest
from headstart.server.replies import CompletionChoice, CompletionReply
from headstart.server.streaming import STREAMED, EventStream, json_response, until_disconnect
from headstart.text import IncrementalDecoder


def router(front: Front) -> APIRouter:
    """The completions route of ``front``."""
    routes = APIRouter(dependencies=[Depends(require_json)], tags=["Generation"])

    @routes.post(
        "/v1/completions", response_model=CompletionReply, responses=STREAMED, summary="Continue prompts"
    )
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue each prompt, whole or (``stream``) as it is generated."""
        ticket = front.admit(body, request, "cmpl-")
        params = body.sampling(front.tokenizer.eos_token_ids)
        await front.check_structure(params)
        special = body.add_special_tokens is not False
        prompts = [
            prompt if isinstance(prompt, list) else await front.encode(prompt, add_special_tokens=special)
            for prompt in body.prompts
        ]
        # All prompts or none; from here on nobody else has a turn before the last of them is in.
        front.client.check_queue(params, len(prompts))
        whole_prompts, prompts = prompts, [front.truncated(prompt, params, ticket) for prompt in prompts]
        echoes = [
            _echo(front, body, given if len(kept) == len(tokens) else kept)
            for given, tokens, kept in zip(body.prompts, whole_prompts, prompts, strict=True)
        ]
        generations = [
            front.generate(prompt, _fitting(front, body, params, prompt), ticket, number=number, echo=echo)
            for number, (prompt, echo) in enumerate(zip(prompts, echoes, strict=True))
        ]
        if body.stream:
            return EventStream(_chunks(front, ticket, generations, body))
        whole = _whole(front, ticket, generations, body)
        return json_response(await until_disconnect(request.receive, whole))

    return routes


def _fitting(
    front: Front, body: CompletionRequest, params: SamplingParams, prompt: list[int]
) -> SamplingParams:
    """The parameters, with the default of ``max_tokens`` cut to what fits behind the prompt."""
    if body.max_tokens is not None:
        return params
    return replace(params, max_tokens=front.fitting(COMPLETION_MAX_TOKENS, prompt))


def _echo(front: Front, body: CompletionRequest, prompt: str | list[int]) -> Echo | None:
    """The prompt as text, with all its markers; None where nobody wants it."""
    if not body.echo:
        return None
    if isinstance(prompt, str):
        return Echo(prompt, body.only_echo)
    decoder = IncrementalDecoder(front.tokenizer, skip_special_tokens=False)
    return Echo(decoder.push(prompt) + decoder.finish(), body.only_echo)


async def _whole(
    front: Front, ticket: Ticket, generations: Sequence[Generation], body: CompletionRequest
) -> CompletionReply:
    collected: defaultdict[int, list[Piece]] = defaultdict(list)
    async with aclosing(merged(generations)) as arriving:
        async for piece in arriving:
            collected[piece.index].append(piece)
    choices: list[CompletionChoice] = []
    for generation in generations:
        for pieces in (collected[index] for index in generation.told):
            tokens = [token for piece in pieces for token in piece.tokens]
            choice = CompletionChoice(
                index=len(choices),
                text="".join(piece.text for piece in pieces),
                logprobs=for_completion(tokens) if generation.tells_logprobs else None,
                finish_reason=pieces[-1].finish_reason,
            )
            if body.prompt_logprobs is not None:
                choice.prompt_logprobs = generation.prompt_logprobs(body.prompt_logprobs)
            if body.return_token_ids:
                choice.prompt_token_ids = list(generation.prompt)
                choice.token_ids = [token for piece in pieces for token in piece.token_ids]
            choices.append(choice)
    return CompletionReply(**_head(front, ticket), choices=choices, usage=usage_of(generations))


async def _chunks(
    front: Front, ticket: Ticket, generations: Sequence[Generation], body: CompletionRequest
) -> AsyncGenerator[CompletionReply, None]:
    """Text as it comes, each choice's last with the reason why it ended, then the usage if asked for."""
    head = _head(front, ticket)
    unbegun = {index: generation for generation in generations for index in generation.told}

    num_told = 0  # the generations may be a token ahead

    def usage() -> dict[str, Any]:
        if body.continuous_usage:
            so_far = usage_of(generations)
            total = so_far.prompt_tokens + num_told
            return {"usage": so_far.model_copy(update={"completion_tokens": num_told, "total_tokens": total})}
        return {"usage": None} if body.include_usage else {}

    async with aclosing(merged(generations)) as pieces:
        async for piece in pieces:
            num_told += len(piece.token_ids)
            told_ids = bool(body.return_token_ids and piece.token_ids)
            if piece.text or piece.tokens or piece.finish_reason or told_ids:
                choice = CompletionChoice(
                    index=piece.index,
                    text=piece.text,
                    logprobs=for_completion(piece.tokens) if piece.tokens else None,
                    finish_reason=piece.finish_reason,
                )
                if body.return_token_ids:
                    choice.token_ids = list(piece.token_ids)
                    if generation := unbegun.pop(piece.index, None):
                        choice.prompt_token_ids = list(generation.prompt)
                yield CompletionReply(**head, choices=[choice], **usage())
    if body.include_usage:
        yield CompletionReply(**head, choices=[], usage=usage_of(generations))


def _head(front: Front, ticket: Ticket) -> dict[str, Any]:
    return {
        "id": ticket.id,
        "object": "text_completion",
        "created": ticket.created,
        "model": front.model,
    }
