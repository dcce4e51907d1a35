"""What `/v1/messages` may be asked, and the wire types of what it answers: Anthropic's API.

Fields that would change the answer and that we cannot do are refused; the rest of that API is ignored.
docs/apis.md says of each field what becomes of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import PydanticCustomError

from headstart.engine.request import SamplingParams
from headstart.engine.structured import StructuredOutputs
from headstart.server.fields import (
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    Count,
    Ignored,
    ListOf,
    Number,
    StopString,
    must_be,
    not_yet,
)
from headstart.server.protocol import MAX_MESSAGES, MAX_PARTS, EngineRequest
from headstart.server.replies import Event

MAX_TOOLS = 1024
Blocks = Annotated[ListOf[dict[str, Any]], Field(max_length=MAX_PARTS)]
CacheControl = Annotated[dict[str, Any] | None, must_be('an object like {"type": "ephemeral"}')]


def _is_not_enabled(thinking: Any) -> Any:
    if isinstance(thinking, dict) and thinking.get("type") == "enabled":
        why = "cannot be enabled: the models here do not set their thinking apart; leave it out"
        raise PydanticCustomError("refused", "is refused", {"why": why})
    return thinking


class AnthropicMessage(BaseModel):
    """One turn; blocks are text, ``tool_use`` (the assistant's) and ``tool_result`` (the user's)."""

    role: Annotated[Literal["user", "assistant"], must_be("user or assistant")]
    content: Annotated[
        str | Annotated[Blocks, Field(min_length=1)],
        must_be(f'a string or a list of 1 to {MAX_PARTS} blocks like {{"type": "text", "text": "…"}}'),
    ]


class JsonFormat(BaseModel):
    """What the answer must be: JSON that matches ``schema``."""

    type: Annotated[Literal["json_schema"], must_be("json_schema")]
    json_schema: Annotated[dict[str, Any], Field(alias="schema"), must_be("an object")]


class OutputConfig(BaseModel):
    """The form of the answer; ``effort`` is for models that think."""

    format: Annotated[JsonFormat | None, must_be('an object like {"type": "json_schema", "schema": …}')] = (
        None
    )
    effort: Ignored = None


class PromptRequest(EngineRequest):
    """What the model is to read: the body of ``POST /v1/messages/count_tokens``."""

    messages: Annotated[ListOf[AnthropicMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Annotated[str | Blocks | None, must_be("a string or a list of text blocks")] = None
    tools: Annotated[
        Annotated[ListOf[dict[str, Any]], Field(max_length=MAX_TOOLS)] | None,
        must_be(f"a list of at most {MAX_TOOLS} objects"),
    ] = None
    tool_choice: Annotated[dict[str, Any] | None, must_be('an object like {"type": "auto"}')] = None
    cache_control: CacheControl = None
    thinking: Annotated[
        Annotated[dict[str, Any] | None, must_be('an object like {"type": "disabled"}')],
        AfterValidator(_is_not_enabled),
    ] = None
    output_config: Annotated[
        OutputConfig | None, must_be('an object like {"format": {"type": "json_schema", "schema": {…}}}')
    ] = None

    container: Annotated[Any, not_yet()] = None
    mcp_servers: Annotated[Any, not_yet([])] = None
    output_format: Annotated[Any, not_yet()] = None  # output_config.format, before it was called so

    context_management: Ignored = None  # a prompt is shortened by nobody here
    diagnostics: Ignored = None
    inference_geo: Ignored = None
    metadata: Ignored = None
    service_tier: Ignored = None
    speed: Ignored = None
    user_profile_id: Ignored = None


class MessagesRequest(PromptRequest):
    """The body of ``POST /v1/messages``."""

    max_tokens: Annotated[
        int, Field(strict=True, ge=1, lt=2**31), must_be("an integer of at least 1 and below 2147483648")
    ]
    temperature: Number = None
    top_p: Number = None
    top_k: Count = None
    stop_sequences: Annotated[
        Annotated[ListOf[Annotated[StopString, Field(min_length=1)]], Field(max_length=MAX_STOP_STRINGS)]
        | None,
        must_be(
            f"a list of at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_LENGTH} characters of valid "
            "Unicode"
        ),
    ] = None

    def sampling(self, eos_token_ids: Iterable[int]) -> SamplingParams:
        """These fields as `SamplingParams`, which end at ``eos_token_ids``.

        Raises `RequestError` that names the field whose value is out of range.
        """
        fields = ("temperature", "top_p", "top_k")
        given = {name: value for name in fields if (value := getattr(self, name)) is not None}
        wanted = None if self.output_config is None else self.output_config.format
        schema: Any = None if wanted is None else wanted.json_schema
        params = SamplingParams(
            **given,
            max_tokens=self.max_tokens,
            stop=tuple(self.stop_sequences or ()),
            structured_outputs=(
                None if schema is None else StructuredOutputs(json=schema, origin="output_config.format")
            ),
        )
        return params.ending_at(eos_token_ids)


class TextContent(BaseModel):
    """What the assistant says."""

    type: Literal["text"]
    text: str


class ToolUse(BaseModel):
    """A tool that the assistant calls."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


Content = TextContent | ToolUse


class CacheCreation(BaseModel):
    """What was computed and is kept, by the lifetime that was asked for."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class MessageUsage(BaseModel):
    """Tokens in and out.  The prompt's are told in three parts, which are all of it.

    ``cache_read_input_tokens`` came from the cache, ``cache_creation_input_tokens`` were computed before the
    last ``cache_control`` marker and are kept, ``input_tokens`` are the others.
    """

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: CacheCreation
    output_tokens: int


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class MessageReply(BaseModel):
    """The assistant's message."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Content]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(BaseModel):
    """How many tokens a prompt has."""

    input_tokens: int


class MessageStart(Event):
    """The message, empty yet."""

    message: MessageReply


class BlockStart(Event):
    """A block of the content, empty yet."""

    index: int
    content_block: Content


class TextDelta(BaseModel):
    """More text."""

    type: Literal["text_delta"]
    text: str


class InputJsonDelta(BaseModel):
    """More of the JSON text of a tool's input."""

    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(Event):
    """More of a block."""

    index: int
    delta: TextDelta | InputJsonDelta


class BlockStop(Event):
    """A block is complete."""

    index: int


class Ending(BaseModel):
    """Why the message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Event):
    """The end of the message, and the bill."""

    delta: Ending
    usage: MessageUsage
