"""The wire types of OpenAI's API, as far as headstart serves it.

Requests: types are strict (``"0.5"`` is no number), ranges are `SamplingParams`' affair, fields we do not
know are ignored.  Fields that we know, do not do yet and that would change the answer are declared with
`not_yet`, so that asking for them is an error with their name and never silently ignored.

Replies: every field is set by whoever builds one, except those that may be absent; they are serialised
with ``exclude_unset``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from headstart.engine.request import MAX_BEST_OF, MAX_LOGPROBS, MAX_N, FinishReason, SamplingParams
from headstart.errors import RequestError

MAX_PROMPTS = 1024
MAX_CHOICES = 1024  # of all prompts together, before the best are sought
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_MESSAGES = 10_000
MAX_PARTS = 10_000
MAX_BIASES = 1024
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions


def must_be(allowed: str) -> WrapValidator:
    """A validator that says in words what is allowed, in place of one complaint for each type tried."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError("must_be", "must be {allowed}", {"allowed": allowed}) from None

    return WrapValidator(check)


def not_yet(*neutral: Any) -> AfterValidator:
    """A validator for a field we do not do yet: only ``null`` and the values that ask for nothing pass."""
    words = " or ".join(json.dumps(value) for value in neutral) or "null"

    def check(value: Any) -> Any:
        alike = (same for same in neutral if isinstance(same, bool) == isinstance(value, bool))
        if value is None or value in alike:
            return value
        raise PydanticCustomError("not_yet", "is not supported yet", {"neutral": words})

    return AfterValidator(check)


def _is_text(text: str) -> str:
    """Half of a surrogate pair, which JSON can spell, is no text."""
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise PydanticCustomError("must_be", "must be {allowed}", {"allowed": "valid Unicode"})
    return text


Integer = Annotated[int, Field(strict=True)]
TokenIds = list[Integer]
_StopTokenIds = list[Annotated[int, Field(strict=True, ge=0, lt=2**31)]]
_StopString = Annotated[str, Field(max_length=MAX_STOP_LENGTH), AfterValidator(_is_text)]

_Bits64 = Annotated[
    int | None, Field(strict=True, ge=-(2**63), lt=2**64), must_be("an integer of at most 64 bits")
]
_Count = Annotated[
    int | None, Field(strict=True, ge=-(2**31), lt=2**31), must_be("an integer below 2147483648")
]
_Limit = Annotated[int | None, Field(strict=True, ge=1, lt=2**31), must_be("an integer of at least 1")]
_Natural = Annotated[int | None, Field(strict=True, ge=0, lt=2**31), must_be("an integer of at least 0")]
_LogitBias = Annotated[
    Annotated[dict[int, Annotated[float, Field(strict=True)]], Field(max_length=MAX_BIASES)] | None,
    must_be(f"an object of at most {MAX_BIASES} token ids, each with a number"),
]
_Number = Annotated[float | None, Field(strict=True), must_be("a number")]
_Flag = Annotated[bool | None, Field(strict=True), must_be("true or false")]
_String = Annotated[str | None, must_be("a string")]
_Stop = Annotated[
    _StopString | Annotated[list[_StopString], Field(max_length=MAX_STOP_STRINGS)] | None,
    must_be(
        f"a string of at most {MAX_STOP_LENGTH} characters of valid Unicode, or a list of at most "
        f"{MAX_STOP_STRINGS} of them"
    ),
]
# vLLM's rule.  A salt is typed key material, so nothing here depends on the characters; clients do.
_CacheSalt = Annotated[
    Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]*$")] | None,
    must_be("a string of 1 to 128 characters without @, /, \\ and NUL"),
]


class StreamOptions(BaseModel):
    """``include_usage`` asks for a last chunk with the usage and no choices."""

    include_usage: _Flag = None


# The fields of a request that are `SamplingParams`' own, under the same names.
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "min_tokens", "ignore_eos"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "n"),
)


class GenerationRequest(BaseModel):
    """What a chat and a completion ask for alike."""

    model: _String = None
    max_tokens: _Limit = None
    temperature: _Number = None
    top_p: _Number = None
    top_k: _Count = None
    seed: _Bits64 = None
    stop: _Stop = None
    stop_token_ids: Annotated[
        Annotated[_StopTokenIds, Field(max_length=128)] | None, must_be("a list of at most 128 token ids")
    ] = None
    ignore_eos: _Flag = None
    stream: _Flag = None
    stream_options: Annotated[StreamOptions | None, must_be('an object like {"include_usage": true}')] = None
    cache_salt: _CacheSalt = None
    priority: _Bits64 = None
    user: _String = None

    min_p: _Number = None
    presence_penalty: _Number = None
    frequency_penalty: _Number = None
    repetition_penalty: _Number = None
    logit_bias: _LogitBias = None
    min_tokens: _Natural = None

    n: Annotated[
        int | None, Field(strict=True, ge=1, le=MAX_N), must_be(f"an integer between 1 and {MAX_N}")
    ] = None

    prompt_logprobs: Annotated[Any, not_yet()] = None
    truncate_prompt_tokens: Annotated[Any, not_yet()] = None
    structured_outputs: Annotated[Any, not_yet()] = None
    guided_json: Annotated[Any, not_yet()] = None
    guided_regex: Annotated[Any, not_yet()] = None
    guided_choice: Annotated[Any, not_yet()] = None
    guided_grammar: Annotated[Any, not_yet()] = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def token_limit(self) -> int | None:
        """How many tokens may be generated; ``None`` is as many as fit."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives are told for each token; ``None`` is no log-probabilities at all."""
        return None

    def sampling(self, eos_token_ids: Iterable[int]) -> SamplingParams:
        """These fields as `SamplingParams`; what was not given has its default.

        ``eos_token_ids``, which the model ends its answers with, stop the text unless ``ignore_eos``.

        Raises `RequestError` that names the field whose value is out of range.
        """
        given = {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None}
        params = SamplingParams(**given, max_tokens=self.token_limit, logprobs=self.num_logprobs)
        return params.ending_at(eos_token_ids)


class Message(BaseModel):
    """One message of a chat."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"],
        must_be("one of system, developer, user, assistant and tool"),
    ]
    content: Annotated[
        str | Annotated[list[dict[str, Any]], Field(max_length=MAX_PARTS)],
        must_be(f'a string or a list of at most {MAX_PARTS} parts like {{"type": "text", "text": "…"}}'),
    ]
    name: _String = None
    tool_calls: Annotated[Any, not_yet([])] = None
    function_call: Annotated[Any, not_yet()] = None


class ChatRequest(GenerationRequest):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: _Limit = None
    add_generation_prompt: _Flag = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, must_be("an object")] = None

    logprobs: _Flag = None
    top_logprobs: Annotated[
        int | None,
        Field(strict=True, ge=0, le=MAX_LOGPROBS),
        must_be(f"an integer between 0 and {MAX_LOGPROBS}"),
    ] = None
    best_of: Annotated[Any, not_yet(1)] = None
    tools: Annotated[Any, not_yet([])] = None
    tool_choice: Annotated[Any, not_yet("none", "auto")] = None
    functions: Annotated[Any, not_yet([])] = None
    function_call: Annotated[Any, not_yet("none", "auto")] = None
    response_format: Annotated[Any, not_yet({"type": "text"})] = None
    modalities: Annotated[Any, not_yet(["text"])] = None
    audio: Annotated[Any, not_yet()] = None
    continue_final_message: Annotated[Any, not_yet(False)] = None

    @property
    def token_limit(self) -> int | None:
        """The newer name wins; without either, as many as fit."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Raises `RequestError` for ``top_logprobs`` without ``logprobs``."""
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise RequestError(
                "top_logprobs is allowed only with logprobs set to true",
                param="top_logprobs",
                code="invalid_value",
            )
        return None


class CompletionRequest(GenerationRequest):
    """The body of ``POST /v1/completions``; each prompt gives ``n`` choices."""

    prompt: Annotated[
        str | TokenIds | list[str] | list[TokenIds],
        must_be("a text, a list of token ids, a list of texts or a list of lists of token ids"),
    ]

    logprobs: Annotated[int | None, Field(strict=True, ge=0, le=5), must_be("an integer between 0 and 5")] = (
        None
    )
    best_of: Annotated[
        int | None,
        Field(strict=True, ge=1, le=MAX_BEST_OF),
        must_be(f"an integer between 1 and {MAX_BEST_OF}"),
    ] = None
    echo: Annotated[Any, not_yet(False)] = None
    suffix: Annotated[Any, not_yet("")] = None

    @property
    def token_limit(self) -> int | None:
        """OpenAI's default where nothing is said."""
        return self.max_tokens or COMPLETION_MAX_TOKENS

    @property
    def num_logprobs(self) -> int | None:
        """As asked for."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts; never empty ones.

        Raises `RequestError` for none, an empty one, more than `MAX_PROMPTS` or more than `MAX_CHOICES`.
        """
        alone = isinstance(self.prompt, str) or all(isinstance(item, int) for item in self.prompt)
        prompts: list[Any] = [self.prompt] if alone else list(self.prompt)
        if not all(prompts):
            raise RequestError("prompt must not be empty", param="prompt", code="invalid_value")
        if len(prompts) > MAX_PROMPTS:
            raise RequestError(
                f"prompt may have at most {MAX_PROMPTS} prompts, got {len(prompts)}",
                param="prompt",
                code="invalid_value",
            )
        choices = self.best_of or self.n or 1
        if len(prompts) * choices > MAX_CHOICES:
            raise RequestError(
                f"{len(prompts)} prompts with {choices} choices each are {len(prompts) * choices} choices, "
                f"but a request may have at most {MAX_CHOICES}",
                param="n" if self.best_of is None else "best_of",
                code="invalid_value",
            )
        return prompts

    def sampling(self, eos_token_ids: Iterable[int]) -> SamplingParams:
        """As `GenerationRequest.sampling`; the best choices are known too late for a stream."""
        params = replace(super().sampling(eos_token_ids), best_of=self.best_of)
        if self.stream and params.num_choices > params.n:
            raise RequestError(
                f"best_of is {params.best_of} and n is {params.n}: the best choices are not known before all "
                "have ended, so they cannot be streamed; leave best_of or stream out",
                param="best_of",
                code="invalid_value",
            )
        return params


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


class ReplyMessage(BaseModel):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str
    refusal: None


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
    """One answer."""

    index: int
    message: ReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatReply(Reply):
    """A whole chat completion."""

    choices: list[ChatChoice]
    usage: Usage


class Delta(BaseModel):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    """A chunk's share of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatChunk(Reply):
    """One event of a streamed chat completion; ``usage`` is there only when it was asked for."""

    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class CompletionLogprobs(BaseModel):
    """The tokens of a text, or of a chunk of it: lists of one length."""

    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


class CompletionChoice(BaseModel):
    """One continued prompt, whole or a chunk of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class CompletionReply(Reply):
    """A whole completion, or one event of a streamed one (then ``usage`` only when it was asked for)."""

    choices: list[CompletionChoice]
    usage: Usage | None = None


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
