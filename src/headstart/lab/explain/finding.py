"""What an explanation is made of: findings, each with evidence, its price in tokens, and the fix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from headstart.cache.reasons import MissReason
from headstart.lab.replay.outcome import Rates, Setting
from headstart.lab.traces.trace import Trace


class FindingKind(StrEnum):
    """What can be found.  The first ones need the prompts' text or tokens, the last ones traffic alone."""

    CLOCK = "clock"
    UUID = "uuid"
    REQUEST_ID = "request_id"
    USER_NAME = "user_name"
    COUNTER = "counter"
    OTHER_VARIABLE = "variable"
    SHUFFLED = "shuffled"
    DRIFT = "drift"
    REASONING_DROPPED = "reasoning_dropped"
    RETOKENISED = "retokenised"
    SHORT_PREFIX = "short_prefix"
    EVICTION_PRESSURE = "eviction_pressure"
    BATCH_CONTENTION = "batch_contention"
    SPLIT_NAMESPACES = "split_namespaces"
    COLD_TAIL = "cold_tail"
    ROUTING_DILUTION = "routing_dilution"

    @property
    def is_fault(self) -> bool:
        """Whether something can be mended: that much text is new is nobody's fault."""
        return self is not FindingKind.COLD_TAIL


@dataclass(frozen=True, slots=True)
class Evidence:
    """A place that shows it: a request of the log, the position in tokens, and a few words of its text.

    ``text`` is None where no text may be shown, or there is none.
    """

    file: str
    line: int
    position: int
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that costs hits.

    ``what`` and ``fix`` are sentences for people, without any text of prompts.  ``num_tokens_lost`` are
    prompt tokens that missed because of it, ``share_lost`` of all prompt tokens.  ``token_hit_rate_after`` is
    what replaying the traffic with the fix gave; None where that cannot be replayed.
    """

    kind: FindingKind
    what: str
    fix: str
    num_tokens_lost: int
    share_lost: float
    num_requests: int
    evidence: tuple[Evidence, ...] = ()
    token_hit_rate_after: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A finding whose fix is still to be tried: with the trace rewritten, with another setting, or both.

    ``setting`` None is the explanation's own; with neither of them there is nothing to replay.
    """

    finding: Finding
    rewritten: Callable[[], Trace] | None = None
    setting: Setting | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a log's hit rate is what it is, with its findings, the dearest first."""

    trace_name: str
    setting: Setting
    rates: Rates
    misses: dict[MissReason, int]
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
