"""What OpenAI's API may be asked, as far as headstart serves it.  The answers are in `server.replies`.

Types are strict (``"0.5"`` is no number), ranges are `SamplingParams`' affair, fields we do not
know are ignored.  Fields that we know, do not do yet and that would change the answer are declared with
`not_yet`, so that asking for them is an error with their name and never silently ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from headstart.engine.request import MAX_BEST_OF, MAX_N, SamplingParams
from headstart.errors import RequestError
from headstart.server.choice import PLAINLY, Telling
from headstart.server.courtesy import CourtesyFields
from headstart.server.fields import (
    AT_LEAST_ONE,
    Bits64,
    Count,
    Flag,
    Limit,
    ListOf,
    LogitBias,
    MaxTokens,
    Natural,
    NotYet,
    NotYetFalse,
    NotYetTrue,
    Number,
    NumLogprobs,
    Penalty,
    RequestId,
    Share,
    Stop,
    StopTokenIds,
    String,
    Text,
    TokenIds,
    TruncatePromptTokens,
    must_be,
    not_yet,
    told,
)
from headstart.server.hints import CacheHints
from headstart.server.structured import Choices, ResponseFormat, Schema, StructuredFields, structure_of
from headstart.server.tool_fields import Calls, Choice, FunctionChoice, Functions, OneCalled, Tools

MAX_PROMPTS = 1024
MAX_CHOICES = 1024  # of all prompts together, before the best are sought
MAX_MESSAGES = 10_000
MAX_PARTS = 10_000
MAX_DOCUMENTS = 10_000
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions


class StreamOptions(BaseModel):
    """``include_usage`` asks for a last chunk with the usage and no choices.

    With ``continuous_usage_stats`` beside it every chunk has the usage so far.  ``include_obfuscation`` would
    pad the chunks, which nobody here does; a client that sends it may go on.
    """

    include_usage: Flag = None
    continuous_usage_stats: Flag = None
    include_obfuscation: Flag = None


@dataclass(frozen=True, slots=True)
class Truncation:
    """The last ``most`` tokens of a prompt are kept; None is as many as leave room for the answer."""

    most: int | None


# The fields of a request that are `SamplingParams`' own, under the same names.
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "min_tokens", "ignore_eos"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "n"),
    "include_stop_str_in_output",
)


class EngineRequest(CacheHints):
    """What every request for tokens says, in whichever API's words the rest is."""

    model: String = None
    stream: Flag = None
    priority: Bits64 = None
    request_id: RequestId = None

    @property
    def telling(self) -> Telling:
        """How the answer is told."""
        return PLAINLY

    @property
    def truncation(self) -> Truncation | None:
        """How much of the end of a prompt is kept; None for all of it."""
        return None


class GenerationRequest(CourtesyFields, EngineRequest):
    """What a chat and a completion ask for alike."""

    max_tokens: MaxTokens = None
    temperature: Annotated[Number, told(minimum=0, maximum=100)] = None
    top_p: Annotated[Number, told(exclusiveMinimum=0, maximum=1)] = None
    top_k: Count = None
    seed: Bits64 = None
    stop: Stop = None
    stop_token_ids: Annotated[
        Annotated[StopTokenIds, Field(max_length=128)] | None, must_be("a list of at most 128 token ids")
    ] = None
    ignore_eos: Flag = None
    include_stop_str_in_output: Flag = None
    stream_options: Annotated[StreamOptions | None, must_be('an object like {"include_usage": true}')] = None

    min_p: Share = None
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    repetition_penalty: Annotated[Number, told(minimum=0.01, maximum=100)] = None
    logit_bias: LogitBias = None
    min_tokens: Natural = None
    prompt_logprobs: NumLogprobs = None

    n: Annotated[
        int | None, Field(strict=True, ge=1, le=MAX_N), must_be(f"an integer between 1 and {MAX_N}")
    ] = None
    truncate_prompt_tokens: TruncatePromptTokens = None
    truncation_side: Annotated[Any, not_yet("left")] = None
    response_format: Annotated[
        ResponseFormat | None,
        must_be('an object like {"type": "json_object"}, whose type is text, json_object or json_schema'),
    ] = None
    structured_outputs: Annotated[
        StructuredFields | None, must_be('an object like {"json": {…}}, {"regex": "…"} or {"choice": ["…"]}')
    ] = None
    structural_tag: NotYet = None
    guided_json: Schema = None
    guided_regex: String = None
    guided_choice: Choices = None
    guided_grammar: String = None
    guided_whitespace_pattern: String = None
    bad_words: Annotated[Any, not_yet([])] = None
    allowed_token_ids: NotYet = None
    logits_processors: Annotated[Any, not_yet([])] = None
    use_beam_search: NotYetTrue = None
    length_penalty: Annotated[Any, not_yet(1.0)] = None
    thinking_token_budget: NotYet = None
    vllm_xargs: Annotated[Any, not_yet({})] = None
    detokenize: NotYetFalse = None
    skip_special_tokens: Flag = None
    spaces_between_special_tokens: Flag = None  # changes nothing with a fast tokenizer, and ours are fast
    return_token_ids: Flag = None
    return_tokens_as_token_ids: Flag = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether each chunk of a stream has the usage so far; vLLM's rule: only beside ``include_usage``."""
        options = self.stream_options
        return self.include_usage and options is not None and bool(options.continuous_usage_stats)

    @property
    def telling(self) -> Telling:
        """How the answer is told."""
        return Telling(
            skip_special_tokens=self.skip_special_tokens is not False,
            tokens_as_ids=bool(self.return_tokens_as_token_ids),
        )

    @property
    def truncation(self) -> Truncation | None:
        """How much of the end of a prompt is kept; None for all of it."""
        most = self.truncate_prompt_tokens
        return None if most is None else Truncation(None if most == -1 else most)

    @property
    def token_limit(self) -> int | None:
        """How many tokens may be generated; ``None`` is as many as fit."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives are told for each token; ``None`` is no log-probabilities at all."""
        return None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The same for each token of the prompt."""
        return self.prompt_logprobs

    def sampling(self, eos_token_ids: Iterable[int]) -> SamplingParams:
        """These fields as `SamplingParams`; what was not given has its default.

        ``eos_token_ids``, which the model ends its answers with, stop the text unless ``ignore_eos``.

        Raises `RequestError` that names the field whose value is out of range, or makes no sense here.
        """
        if self.stream_options is not None and not self.stream:
            raise RequestError(
                "stream_options is allowed only with stream set to true",
                param="stream_options",
                code="invalid_value",
            )
        if self.token_limit == 0 and self.num_prompt_logprobs is None:
            raise RequestError(
                f"max_tokens must be {AT_LEAST_ONE}, got 0", param="max_tokens", code="invalid_value"
            )
        if self.stream and self.prompt_logprobs is not None:
            raise RequestError(
                "prompt_logprobs are not available when stream is true: leave one of them out",
                param="prompt_logprobs",
                code="invalid_value",
            )
        given = {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None}
        params = SamplingParams(
            **given,
            max_tokens=self.token_limit,
            logprobs=self.num_logprobs,
            prompt_logprobs=self.num_prompt_logprobs,
            structured_outputs=structure_of(self),
        )
        return params.ending_at(eos_token_ids)


class Message(BaseModel):
    """One message of a chat; an assistant's may come without content, as OpenAI's own do.

    An assistant's calls of tools are answered by messages of the role ``tool`` with the call's id; or, in the
    older form, a ``function_call`` by one of the role ``function``.
    """

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool", "function"],
        must_be("one of system, developer, user, assistant, tool and function"),
    ]
    content: Annotated[
        str | Annotated[ListOf[dict[str, Any]], Field(max_length=MAX_PARTS)],
        must_be(f'a string or a list of at most {MAX_PARTS} parts like {{"type": "text", "text": "…"}}'),
    ]
    name: String = None
    tool_calls: Calls = None
    tool_call_id: String = None
    function_call: OneCalled = None
    reasoning_content: String = None

    @model_validator(mode="before")
    @classmethod
    def _assistants_may_say_nothing(cls, message: Any) -> Any:
        if (
            isinstance(message, dict)
            and message.get("role") == "assistant"
            and message.get("content") is None
        ):
            return {**message, "content": ""}
        return message


class ChatRequest(GenerationRequest):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[ListOf[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Limit = None
    add_generation_prompt: Flag = None
    continue_final_message: Flag = None
    echo: Flag = None
    chat_template: Text = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, must_be("an object")] = None
    documents: Annotated[
        Annotated[ListOf[dict[str, Any]], Field(max_length=MAX_DOCUMENTS)] | None,
        must_be(f"a list of at most {MAX_DOCUMENTS} objects"),
    ] = None
    reasoning_effort: Text = None

    logprobs: Flag = None
    top_logprobs: NumLogprobs = None
    best_of: Annotated[Any, not_yet(1)] = None
    tools: Tools = None
    tool_choice: Choice = None
    parallel_tool_calls: Flag = None
    functions: Functions = None
    function_call: FunctionChoice = None
    modalities: Annotated[Any, not_yet(["text"])] = None
    audio: NotYet = None
    add_special_tokens: Flag = None
    web_search_options: NotYet = None
    mm_processor_kwargs: Annotated[Any, not_yet({})] = None

    @property
    def offers_tools(self) -> bool:
        """Whether the answer may have calls of tools."""
        choice = self.function_call if self.tool_choice is None else self.tool_choice
        return bool(self.tools or self.functions) and choice != "none"

    @property
    def opens_a_turn(self) -> bool:
        """Whether the answer is a message of its own: unless told otherwise, and unless one is left open."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt

    @property
    def token_limit(self) -> int | None:
        """The newer name wins; without either, as many as fit."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

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
        str | TokenIds | ListOf[str] | ListOf[TokenIds],
        must_be("a text, a list of token ids, a list of texts or a list of lists of token ids"),
        told(minLength=1, minItems=1),
    ]

    logprobs: Annotated[int | None, Field(strict=True, ge=0, le=5), must_be("an integer between 0 and 5")] = (
        None
    )
    best_of: Annotated[
        int | None,
        Field(strict=True, ge=1, le=MAX_BEST_OF),
        must_be(f"an integer between 1 and {MAX_BEST_OF}"),
    ] = None
    echo: Flag = None
    suffix: Annotated[Any, not_yet("")] = None
    prompt_embeds: NotYet = None
    add_special_tokens: Flag = None

    @property
    def token_limit(self) -> int | None:
        """OpenAI's default where nothing is said."""
        if self.only_echo:
            return 1
        return COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """As asked for."""
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        """With ``echo``, ``logprobs`` are those of the prompt, too; enough for who asks for both."""
        if not self.echo or self.logprobs is None:
            return self.prompt_logprobs
        return max(self.logprobs, self.prompt_logprobs or 0)

    @property
    def only_echo(self) -> bool:
        """Whether the prompt's text is all that is wanted.

        The engine, which knows no text, is asked for one token all the same; nobody is shown it.
        """
        return bool(self.echo) and self.max_tokens == 0 and self.num_prompt_logprobs is None

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
