"""``POST /tokenize`` and ``POST /detokenize``: vLLM's, and no engine is asked."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Discriminator, Field, Tag
from starlette.requests import Request

from headstart.errors import RequestError
from headstart.server.chat_conversation import conversation_of
from headstart.server.conversation import prompt_of
from headstart.server.errors import HIDDEN_TAG
from headstart.server.fields import Flag, String, TokenIds, must_be
from headstart.server.front import LONG_TEXT, Front, require_json
from headstart.server.protocol import ChatRequest

CHAT, TEXT = f"{HIDDEN_TAG}chat", f"{HIDDEN_TAG}text"


class TokenizeText(BaseModel):
    """A prompt, as ``/v1/completions`` would be given it."""

    model: String = None
    prompt: Annotated[str, must_be("a string")]
    add_special_tokens: Flag = None
    return_token_strs: Flag = None


class TokenizeChat(ChatRequest):
    """A conversation: everything that ``/v1/chat/completions`` takes, with the same effect on the prompt."""

    return_token_strs: Flag = None


def _kind(body: Any) -> Literal["~chat", "~text"]:
    given = body if isinstance(body, dict) else getattr(body, "model_fields_set", ())
    return CHAT if "messages" in given else TEXT  # type: ignore[return-value]


TokenizeRequest = Annotated[
    Annotated[TokenizeText, Tag(TEXT)] | Annotated[TokenizeChat, Tag(CHAT)], Discriminator(_kind)
]


class Tokens(BaseModel):
    """A prompt's tokens; ``token_strs`` as the vocabulary spells them, only when they were asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(BaseModel):
    """The ids of tokens; no more than fit the model."""

    model: String = None
    tokens: Annotated[TokenIds, must_be("a list of token ids")] = Field(examples=[[504, 3575, 282]])


class Text(BaseModel):
    """The text of some tokens, their markers included."""

    prompt: str


def router(front: Front) -> APIRouter:
    """The two routes, with the tokenizer and the chat template of ``front``."""
    routes = APIRouter(dependencies=[Depends(require_json)], tags=["Tokens"])

    @routes.post("/tokenize", summary="Tokens of a prompt or a conversation")
    async def tokenize(body: TokenizeRequest, request: Request) -> Tokens:
        """What the model would be given for this prompt, or for this chat."""
        if body.model is not None:
            front.check_model(body.model)
        if isinstance(body, TokenizeChat):
            ticket = front.admit(body, request, "tokenize-")
            params = body.sampling(front.tokenizer.eos_token_ids)
            tokens = await prompt_of(front, conversation_of(body), ticket.caller)
            tokens = front.truncated(tokens, params, ticket)
        else:
            tokens = await front.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
        spelled = [front.tokenizer.token(token) or "" for token in tokens] if body.return_token_strs else None
        return Tokens(
            count=len(tokens),
            max_model_len=front.client.info.max_model_len,
            tokens=tokens,
            token_strs=spelled,
        )

    @routes.post("/detokenize", summary="Text of token ids")
    async def detokenize(body: DetokenizeRequest) -> Text:
        """The text of these tokens, markers included."""
        if body.model is not None:
            front.check_model(body.model)
        longest = front.client.info.max_model_len
        if len(body.tokens) > longest:
            raise RequestError(
                f"tokens may be at most {longest}, as many as this model takes, got {len(body.tokens)}",
                param="tokens",
                code="context_length_exceeded",
            )
        try:
            if len(body.tokens) < LONG_TEXT:
                return Text(prompt=front.tokenizer.decode(body.tokens, skip_special_tokens=False))
            decoding = asyncio.to_thread(front.tokenizer.decode, body.tokens, skip_special_tokens=False)
            return Text(prompt=await decoding)
        except RequestError as error:
            error.param = "tokens"
            raise

    return routes
