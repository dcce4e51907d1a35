"""What `/v1/responses` may be asked.  The answers are in `server.responses_replies`.

Fields that would change the answer and that we cannot do are refused; the rest of OpenAI's API is ignored.
docs/apis.md says of each field what becomes of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from headstart.engine.request import SamplingParams
from headstart.server.fields import (
    ECHOED,
    Bits64,
    Count,
    Flag,
    Ignored,
    Limit,
    ListOf,
    Number,
    NumLogprobs,
    Stop,
    String,
    must_be,
    not_yet,
    refused,
)
from headstart.server.protocol import EngineRequest
from headstart.server.responses_input import MAX_ITEMS, MAX_TOOLS, structured_outputs

MAX_METADATA = 16
LOGPROBS = "message.output_text.logprobs"
"""The one thing of ``include`` that we have."""

STATELESS = "is not possible: nothing is stored here, so send the whole conversation as input"
# The fields of a request that are `SamplingParams`' own, under the same names.
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)


class TextConfig(BaseModel):
    """``format`` is what the text must be: free, a JSON object, or JSON that matches a schema."""

    format: Annotated[dict[str, Any] | None, must_be('an object like {"type": "json_object"}')] = None
    verbosity: Ignored = None


class ResponsesRequest(EngineRequest):
    """The body of ``POST /v1/responses``."""

    input: Annotated[
        str | Annotated[ListOf[dict[str, Any]], Field(min_length=1, max_length=MAX_ITEMS)],
        must_be(f"a string or a list of 1 to {MAX_ITEMS} items like "
                '{"role": "user", "content": "…"}'),
    ]  # fmt: skip
    instructions: Annotated[String, ECHOED] = None
    max_output_tokens: Limit = None
    temperature: Number = None
    top_p: Number = None
    top_logprobs: NumLogprobs = None
    include: Annotated[ListOf[str] | None, must_be("a list of strings")] = None
    text: Annotated[TextConfig | None, must_be('an object like {"format": {"type": "text"}}'), ECHOED] = None
    tools: Annotated[
        Annotated[ListOf[dict[str, Any]], Field(max_length=MAX_TOOLS)] | None,
        must_be(f"a list of at most {MAX_TOOLS} objects"),
        ECHOED,
    ] = None
    tool_choice: Annotated[str | dict[str, Any] | None, must_be("a string or an object"), ECHOED] = None
    parallel_tool_calls: Flag = None
    metadata: Annotated[
        Annotated[dict[str, str], Field(max_length=MAX_METADATA)] | None,
        must_be(f"an object of at most {MAX_METADATA} strings"),
        ECHOED,
    ] = None
    store: Flag = None  # answered with false
    # Where a prompt is too long, both are an error here.
    truncation_strategy: Annotated[
        Literal["auto", "disabled"] | None, Field(alias="truncation"), must_be("auto or disabled")
    ] = None
    user: Annotated[String, ECHOED] = None

    # Not in OpenAI's form of this API, but in vLLM's, or in OpenAI's chat: so they mean something to clients.
    top_k: Count = None
    min_p: Number = None
    seed: Bits64 = None
    stop: Stop = None
    presence_penalty: Number = None
    frequency_penalty: Number = None
    repetition_penalty: Number = None

    previous_response_id: Annotated[Any, refused(STATELESS)] = None
    conversation: Annotated[Any, refused(STATELESS)] = None
    prompt: Annotated[
        Any, refused("is not possible: no templates are stored here, so send instructions and input")
    ] = None
    background: Annotated[
        Any, refused("is not possible: nothing is stored here, so leave it out and wait or stream", False)
    ] = None
    context_management: Annotated[Any, not_yet([])] = None
    moderation: Annotated[Any, not_yet()] = None

    background_options: Ignored = None
    max_tool_calls: Ignored = None  # of OpenAI's own tools
    reasoning: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    stream_options: Ignored = None  # the padding that it is about is never sent

    @property
    def tells_logprobs(self) -> bool:
        """Whether the text's tokens are told with their log-probabilities."""
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    def sampling(self, eos_token_ids: Iterable[int]) -> SamplingParams:
        """These fields as `SamplingParams`, which end at ``eos_token_ids``.

        Raises `RequestError` that names the field whose value is out of range.
        """
        given = {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None}
        wanted = None if self.text is None else self.text.format
        params = SamplingParams(
            **given,
            max_tokens=self.max_output_tokens,
            logprobs=(self.top_logprobs or 0) if self.tells_logprobs else None,
            structured_outputs=structured_outputs(wanted),
        )
        return params.ending_at(eos_token_ids)
