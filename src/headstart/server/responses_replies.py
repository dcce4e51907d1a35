"""The wire types of what `/v1/responses` answers, and of the events of a stream.

Every field is set by whoever builds a reply.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from headstart.server.replies import Event, TokenDetails


class OutputText(BaseModel):
    """The text of a message; ``logprobs`` is empty unless they were asked for."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenDetails]


Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputMessage(BaseModel):
    """What the assistant says."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Status
    content: list[OutputText]


class FunctionCall(BaseModel):
    """A tool that the assistant calls; ``arguments`` is JSON text."""

    id: str
    type: Literal["function_call"]
    status: Status
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | FunctionCall


class InputTokensDetails(BaseModel):
    """How many of the input's tokens came from the cache, and how many of the others are kept there now."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(BaseModel):
    """No tokens are set apart as reasoning."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Tokens in, out and from the cache; ``output_tokens`` counts the one that ended the text."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFailure(BaseModel):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(BaseModel):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseReply(BaseModel):
    """A response, finished or on its way; what was asked is told again, as OpenAI does."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    service_tier: Literal["default"]
    store: Literal[False]
    background: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None


class Numbered(Event):
    """An event of a response; they are numbered from 0."""

    sequence_number: int


class LifeEvent(Numbered):
    """The whole response as it stands: it is created, in progress, or at its end."""

    response: ResponseReply


class ItemEvent(Numbered):
    """An item of the output is added, or done."""

    output_index: int
    item: OutputItem


class InItem(Numbered):
    """Something of an item."""

    item_id: str
    output_index: int


class PartEvent(InItem):
    """A part of a message is added, or done."""

    content_index: int
    part: OutputText


class TextDelta(InItem):
    """More text."""

    content_index: int
    delta: str
    logprobs: list[TokenDetails]


class TextDone(InItem):
    """All of the text."""

    content_index: int
    text: str
    logprobs: list[TokenDetails]


class ArgumentsDelta(InItem):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(InItem):
    """All of a call's arguments."""

    name: str
    arguments: str


class ErrorEvent(Numbered):
    """Something failed; the response as it stands follows."""

    code: str | None
    message: str
    param: str | None
