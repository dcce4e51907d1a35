"""What the engine says and is told, as plain data: no torch, no behaviour worth the name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from headstart.cache import BlockCopy, CacheRequest
from headstart.errors import RequestError

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next tokens are chosen and when to stop.  Names and defaults are vLLM's.

    ``temperature`` 0 is greedy.  ``top_k`` 0 or -1 and ``top_p`` 1.0 are off.  ``max_tokens`` ``None`` is
    as many as fit.  ``stop`` strings end the text and are not part of it; ``stop_token_ids`` end the
    output and are part of its token ids.  A request with a ``seed`` gives the same tokens again.

    Raises ``RequestError`` that names the field and what is allowed.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.stop, str | list):
            object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        self._demand(
            "temperature",
            math.isfinite(self.temperature) and 0.0 <= self.temperature <= 100.0,
            "between 0 and 100",
        )
        self._demand("top_p", math.isfinite(self.top_p) and 0.0 < self.top_p <= 1.0, "above 0 and at most 1")
        self._demand("top_k", self.top_k >= -1, "0 or -1 (off) or a positive integer")
        object.__setattr__(self, "top_k", max(0, self.top_k))
        self._demand("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "at least 1")
        self._demand("stop", all(self.stop), "non-empty strings")
        self._demand(
            "seed", self.seed is None or -(2**63) <= self.seed < 2**64, "an integer of at most 64 bits"
        )

    def _demand(self, name: str, condition: bool, allowed: str) -> None:
        if not condition:
            raise RequestError(
                f"{name} must be {allowed}, got {getattr(self, name)!r}", param=name, code="invalid_value"
            )


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
class ScheduledRow:
    """One request's share of a step: ``token_ids`` at positions ``start …`` are to be computed.

    ``block_ids`` is the whole block table after this step's grant, to be read only and only during
    the step.  ``sample`` asks for the token after the last one.
    """

    request_id: str
    token_ids: list[int]
    start: int
    block_ids: list[int]
    sample: bool
    params: SamplingParams
    num_output_tokens: int

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
class StepResult:
    """By request id: a sampled token for each row that asked for one, or the sentence why there is none."""

    sampled: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step brought for one request."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
