"""The wire types of what OpenAI's API answers, as far as headstart serves it.

Every field is set by whoever builds a reply, except those that may be absent; they are serialised with
``exclude_unset``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from headstart.engine.request import FinishReason

EndReason = FinishReason | Literal["tool_calls"]
"""Why a choice ended, as a client is told it."""

ChatEndReason = EndReason | Literal["function_call"]
"""The same, with the older word for calls."""


class PromptTokensDetails(BaseModel):
    """How many of the prompt's tokens came from the cache."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens in, out and from the cache; ``completion_tokens`` counts the one that ended the text."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Reply(BaseModel):
    """What every reply and every chunk begins with."""

    id: str
    object: str
    created: int
    model: str


class CalledFunction(BaseModel):
    """What is to be called; ``arguments`` are JSON text."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ReplyMessage(BaseModel):
    """The assistant's message; ``content`` is null where there are only calls.

    ``function_call`` is the older form of ``tool_calls``, for those who asked in it.
    """

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] | None = None
    function_call: CalledFunction | None = None


class TopToken(BaseModel):
    """A token that was likely; ``bytes`` because a token may be part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenDetails(TopToken):
    """A generated token, and the likeliest ones in its place."""

    top_logprobs: list[TopToken]


class ChatLogprobs(BaseModel):
    """The tokens of an answer, or of a chunk of it."""

    content: list[TokenDetails]
    refusal: None


class ChatChoice(BaseModel):
    """One answer; ``token_ids`` only when they were asked for."""

    index: int
    message: ReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatEndReason
    token_ids: list[int] | None = None


class PromptToken(BaseModel):
    """A token in some place of the prompt; rank 1 is the likeliest.  vLLM's form."""

    logprob: float
    rank: int
    decoded_token: str


PromptTokens = list[dict[int, PromptToken] | None]
"""In each place of the prompt, by token id, the token that is there and the likeliest; null in the first."""


class ChatReply(Reply):
    """A whole chat completion; what is told of the prompt is there only when it was asked for."""

    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptTokens | None = None
    prompt_token_ids: list[int] | None = None


class FunctionDelta(BaseModel):
    """What a chunk adds to a call: its name, or more of its arguments."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(BaseModel):
    """What a chunk adds to the call of this ``index``; ``id`` and ``type`` come with the name."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(BaseModel):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    function_call: FunctionDelta | None = None


class ChatChunkChoice(BaseModel):
    """A chunk's share of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: ChatEndReason | None
    token_ids: list[int] | None = None


class ChatChunk(Reply):
    """One event of a streamed chat completion; ``usage`` is there only when it was asked for.

    So are ``prompt_token_ids``, with the first.
    """

    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None


class CompletionLogprobs(BaseModel):
    """The tokens of a text, or of a chunk of it: lists of one length.

    An echoed prompt's first token has no log-probability.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(BaseModel):
    """One continued prompt, whole or a chunk of it; the last three only when they were asked for."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: EndReason | None
    prompt_logprobs: PromptTokens | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class CompletionReply(Reply):
    """A whole completion, or one event of a streamed one (then ``usage`` only when it was asked for)."""

    choices: list[CompletionChoice]
    usage: Usage | None = None


class Event(BaseModel):
    """An event of a stream that is written with its name."""

    type: str


class ModelCard(BaseModel):
    """A served model; ``max_model_len`` bounds prompt plus output, in tokens, as vLLM tells it."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    """The served models."""

    object: Literal["list"]
    data: list[ModelCard]


class Health(BaseModel):
    """An engine serves."""

    status: Literal["ok"]


class Version(BaseModel):
    """Which headstart answers."""

    version: str


class Reset(BaseModel):
    """Everything cached was forgotten."""

    success: Literal[True]


class RefusedReset(BaseModel):
    """Nothing was: ``error`` is an error object, and says why."""

    success: Literal[False]
    error: dict[str, str | None]
