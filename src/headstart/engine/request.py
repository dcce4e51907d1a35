"""What the engine says and is told, as plain data: no torch, no behaviour worth the name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headstart.cache import BlockCopy, CacheRequest
from headstart.engine.structured import StructuredOutputs, TokenMatcher
from headstart.errors import RequestError, shown

FinishReason = Literal["stop", "length", "abort", "error"]
MAX_LOGPROBS = 20
"""The most alternatives that are told for a token, as in OpenAI's API."""
MAX_N = 128
MAX_BEST_OF = 20
"""The most choices of one prompt, and the most that the best are sought among, as in OpenAI's API."""
DEFAULT_MAX_TOKENS = 16
"""As in vLLM, and in OpenAI's completions."""

_NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_INTEGERS = ("top_k", "min_tokens", "n")
_INTEGERS_OR_NONE = ("seed", "max_tokens", "logprobs", "prompt_logprobs", "best_of")
_COLLECTIONS = (list, tuple, set, frozenset)
_BIASES = "token ids, each with a number between -100 and 100"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next tokens are chosen and when to stop.  Names and defaults are vLLM's.

    ``temperature`` 0 is greedy.  ``top_k`` 0 or -1, ``top_p`` 1.0 and ``min_p`` 0.0 are off; ``min_p``
    is a share of the likeliest token's probability.  ``max_tokens`` ``None`` is as many as fit, and 0 is
    none: for those that want ``prompt_logprobs`` and nothing else, or the prompt computed and cached.
    ``stop`` strings end the text and are not part of it; ``stop_token_ids`` end the output and are part of
    its token ids, not of its text; with ``include_stop_str_in_output`` the text has them, too.  Until
    ``min_tokens`` were generated no end is chosen and stop strings are not looked for.  ``ignore_eos`` goes
    on where the model would end.  A request with a ``seed`` gives the same tokens again.

    ``logit_bias`` is added to the logits of its token ids.  Then ``repetition_penalty`` divides the positive
    logits of tokens that the prompt or the output has, and multiplies the negative ones;
    ``frequency_penalty`` is taken off for each time that a token was generated, ``presence_penalty`` once.

    ``logprobs`` asks for the log-probability of each generated token and for so many of the likeliest tokens
    in its place, as the model gave them: before biases, penalties and the temperature.  ``prompt_logprobs``
    asks for the same of each prompt token after the first; all of them are computed then, cached or not.

    ``n`` asks for so many choices of one prompt, which is computed once; each draws random numbers of its
    own, the first those of a request with ``n`` 1.  With ``best_of`` so many are generated, and the ``n``
    whose tokens have the highest mean log-probability are told, best first.

    ``structured_outputs`` are what the text must match: tokens that would break it are never chosen, whatever
    the other parameters say.  Once it is complete the output ends, ``ignore_eos`` and ``min_tokens`` or not.

    Raises ``RequestError`` that names the field and what is allowed.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict, hash=False)
    min_tokens: int = 0
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    best_of: int | None = None
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        self._settle_types()
        self._demand(
            "temperature",
            math.isfinite(self.temperature) and 0.0 <= self.temperature <= 100.0,
            "between 0 and 100",
        )
        self._demand("top_p", math.isfinite(self.top_p) and 0.0 < self.top_p <= 1.0, "above 0 and at most 1")
        self._demand("top_k", self.top_k >= -1, "0 or -1 (off) or a positive integer")
        object.__setattr__(self, "top_k", max(0, self.top_k))
        self._demand("max_tokens", self.max_tokens is None or self.max_tokens >= 0, "at least 0")
        self._demand(
            "seed", self.seed is None or -(2**63) <= self.seed < 2**64, "an integer of at most 64 bits"
        )
        self._demand("min_p", 0.0 <= self.min_p <= 1.0, "between 0 and 1")
        self._demand("presence_penalty", -2.0 <= self.presence_penalty <= 2.0, "between -2 and 2")
        self._demand("frequency_penalty", -2.0 <= self.frequency_penalty <= 2.0, "between -2 and 2")
        self._demand(
            "repetition_penalty", 0.01 <= self.repetition_penalty <= 100.0, "between 0.01 and 100 (1 is off)"
        )
        self._demand(
            "logit_bias",
            all(token >= 0 and -100.0 <= bias <= 100.0 for token, bias in self.logit_bias.items()),
            _BIASES,
        )
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(self, name)
            self._demand(name, wanted is None or 0 <= wanted <= MAX_LOGPROBS, f"between 0 and {MAX_LOGPROBS}")
        self._demand("n", 1 <= self.n <= MAX_N, f"between 1 and {MAX_N}")
        self._demand(
            "best_of",
            self.best_of is None or self.n <= self.best_of <= MAX_BEST_OF,
            f"at least n, which is {self.n}, and at most {MAX_BEST_OF}",
        )
        most = math.inf if self.max_tokens is None else self.max_tokens
        unless_given = " unless given" if most == DEFAULT_MAX_TOKENS else ""
        self._demand(
            "min_tokens",
            0 <= self.min_tokens <= most,
            f"at least 0 and at most max_tokens, which is {self.max_tokens}{unless_given}"
            if self.max_tokens is not None
            else "at least 0",
        )

    def _settle_types(self) -> None:
        """Every field as its type says, or refused; where vLLM's default is None, None is no error."""
        for name in _NUMBERS:
            self._demand(name, _is_number(getattr(self, name)), "a number")
        for name in _INTEGERS:
            self._demand(name, _is_integer(getattr(self, name)), "an integer")
        for name in _INTEGERS_OR_NONE:
            value = getattr(self, name)
            self._demand(name, value is None or _is_integer(value), "an integer or None")
        for name in ("ignore_eos", "include_stop_str_in_output"):
            self._demand(name, isinstance(getattr(self, name), bool), "True or False")
        structured = self.structured_outputs
        self._demand(
            "structured_outputs",
            isinstance(structured, StructuredOutputs | None),
            "StructuredOutputs or None",
        )
        given: dict[str, Any] = {
            name: getattr(self, name) for name in ("stop", "stop_token_ids", "logit_bias")
        }
        stop, stop_ids, bias = given["stop"] or (), given["stop_token_ids"] or (), given["logit_bias"] or {}
        if isinstance(given["stop"], str):
            stop = (given["stop"],)
        strings = isinstance(stop, _COLLECTIONS) and all(isinstance(one, str) for one in stop)
        self._demand("stop", strings, "a string or a list of strings")
        if not all(stop):
            raise _invalid("stop", "non-empty strings", "")
        whole = isinstance(stop_ids, _COLLECTIONS) and all(map(_is_integer, stop_ids))
        self._demand("stop_token_ids", whole, "a list of token ids")
        numbers = isinstance(bias, dict) and all(
            _is_integer(token) and _is_number(number) for token, number in bias.items()
        )
        self._demand("logit_bias", numbers, _BIASES)
        object.__setattr__(self, "stop", tuple(stop))
        object.__setattr__(self, "stop_token_ids", tuple(stop_ids))
        object.__setattr__(self, "logit_bias", bias)

    @property
    def num_choices(self) -> int:
        """How many choices are generated."""
        return self.n if self.best_of is None else self.best_of

    @property
    def penalizes(self) -> bool:
        """Whether the choice depends on the tokens so far."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)

    @property
    def adjusts_logits(self) -> bool:
        """Whether logits are changed, other than by the temperature, before a token is chosen."""
        return self.penalizes or bool(self.logit_bias) or self.min_tokens > 0

    def ending_at(self, eos_token_ids: Iterable[int]) -> SamplingParams:
        """The same, stopping at the ids with which a model ends its answers unless `ignore_eos`."""
        if self.ignore_eos:
            return self
        stop = dict.fromkeys((*self.stop_token_ids, *sorted(eos_token_ids)))
        return replace(self, stop_token_ids=tuple(stop))

    def _demand(self, name: str, condition: bool, allowed: str) -> None:
        if not condition:
            raise _invalid(name, allowed, getattr(self, name))


def _invalid(name: str, allowed: str, given: object) -> RequestError:
    return RequestError(f"{name} must be {allowed}, got {shown(given)}", param=name, code="invalid_value")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_integer(value)


@dataclass(frozen=True, slots=True)
class Retention:
    """A prompt is to be kept for ``seconds`` from when it is computed, in the place of what ``name`` had.

    ``name`` None is the request's own.
    """

    seconds: float
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTerms:
    """Whose cache a request shares, and what it wants of it.

    Requests of different ``salt`` share nothing.  ``retention_priority`` says how long to keep what the
    request uses, 0 to 100, the higher the longer, and for good; ``retention`` keeps its prompt for a time, as
    far as there is room for that.  With ``skip_reading`` nothing that others computed is a hit for it, with
    ``skip_writing`` nothing that it computes is ever found.  ``tenant`` is who pays for what it holds where
    tenants have shares of the pool; it keeps nothing apart, which the salt must do.
    """

    salt: str | None = field(default=None, repr=False)
    retention_priority: int = 0
    skip_reading: bool = False
    skip_writing: bool = False
    retention: Retention | None = None
    tenant: str | None = None


PLAIN_TERMS = CacheTerms()
"""Those of a request that says nothing about the cache."""


@dataclass(slots=True, eq=False)
class Request:
    """One request as the scheduler sees it.

    ``cache`` owns the tokens (prompt, then output) and the namespace; ``num_computed_tokens`` is how
    many of them have their K and V in the pool.  The scheduler alone changes these fields.
    """

    request_id: str
    cache: CacheRequest
    params: SamplingParams
    num_prompt_tokens: int
    max_tokens: int
    arrival_time: float
    priority: int = 0  # smaller is sooner
    order: tuple[int, int] = (0, 0)  # (priority, arrival), set when it is queued
    num_computed_tokens: int = 0
    num_cached_tokens: int | None = None  # at the first admission; None before it
    num_preemptions: int = 0
    token_counts: dict[int, int] | None = None
    """How often each token was generated, 0 for those that only the prompt has; None if nobody asks."""
    matcher: TokenMatcher | None = None
    """What its output must match, and how far it has come; None if it may be anything."""
    retention: Retention | None = None
    num_retained_tokens: int = 0
    """How many of the prompt's tokens are kept for that time, once it is computed."""

    def __post_init__(self) -> None:
        if self.params.penalizes:
            self.token_counts = dict.fromkeys(self.cache.token_ids(), 0)

    def append(self, token: int) -> None:
        """Take in a generated token."""
        self.cache.append(token)
        if self.token_counts is not None:
            self.token_counts[token] = self.token_counts.get(token, 0) + 1
        if self.matcher is not None:
            self.matcher.accept(token)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return self.cache.num_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether all that is missing is the token generated last."""
        return self.num_output_tokens > 0 and self.num_computed_tokens == self.num_tokens - 1

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return self.cache.num_tokens - self.num_prompt_tokens


@dataclass(frozen=True, slots=True)
class PromptTargets:
    """Prompt tokens whose log-probabilities a step is to tell.

    The logits after the row's token ``first`` are for ``token_ids[0]``, and so on; the last of them may be
    the first token of the next chunk.
    """

    first: int
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class ScheduledRow:
    """One request's share of a step: ``token_ids`` at positions ``start …`` are to be computed.

    ``block_ids`` is the whole block table after this step's grant, to be read only and only during
    the step.  ``sample`` asks for the token after the last one.  ``token_counts`` and ``matcher`` are the
    request's own, to be read only.  ``targets`` are there for requests with ``prompt_logprobs``.  ``forks``
    are requests that take their first token from this row's logits, too; nothing was generated yet, so
    their own matchers would say what this one says.
    """

    request_id: str
    token_ids: list[int]
    start: int
    block_ids: list[int]
    sample: bool
    params: SamplingParams
    num_output_tokens: int
    token_counts: dict[int, int] | None = None
    targets: PromptTargets | None = None
    forks: tuple[tuple[str, SamplingParams], ...] = ()
    matcher: TokenMatcher | None = None

    def choices(self) -> list[ScheduledRow]:
        """The row itself, and the same as a row of each of its forks."""
        return [self, *(replace(self, request_id=name, params=params) for name, params in self.forks)]

    @property
    def is_decoding(self) -> bool:
        """Whether the row computes the token generated last, and nothing else."""
        return self.num_output_tokens > 0 and len(self.token_ids) == 1


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes.  ``copies`` are done before anything is written."""

    rows: tuple[ScheduledRow, ...]
    copies: tuple[BlockCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed by the step, over all rows."""
        return sum(len(row.token_ids) for row in self.rows)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A generated token's log-probability, and the likeliest tokens in its place with theirs, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprob:
    """A prompt token's log-probability and its rank (1 is the likeliest), and the likeliest in its place."""

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """By request id: a sampled token for each choice of a row that asked for one, or why there is none."""

    sampled: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    logprobs: dict[str, TokenLogprob] = field(default_factory=dict)  # of the rows that asked
    prompt_logprobs: dict[str, tuple[PromptLogprob, ...]] = field(default_factory=dict)  # one for each target


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step brought for one request; ``logprobs``, if it asked, are one for each token.

    ``prompt_logprobs``, if it asked, come in pieces: all pieces together, in order, are those of the
    prompt's second token to its last, and are there with the first generated token at the latest.
    ``num_retained_tokens`` of the prompt are kept for the time that was asked for, once it is computed.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[PromptLogprob, ...] = ()
    num_retained_tokens: int = 0
