"""What recorded traffic becomes, whatever format it came in, and what every tool of the lab reads.

A prompt is a run of *symbols*.  In a trace with text or token ids a symbol is a token.  In a trace of hash
ids it stands for a whole block of ``tokens_per_symbol`` tokens, and for all that comes before it: then only
multiples of that block size, and whole blocks, can be said anything of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headstart.cache import Namespace
from headstart.cache.keys import SHARED
from headstart.cache.tokens import TOKEN_BYTES


class TraceFormat(StrEnum):
    """The formats that are read, by the names that ``--format`` takes."""

    MOONCAKE = "mooncake"
    BAILIAN = "bailian"
    OPENAI = "openai"
    SHAREGPT = "sharegpt"
    TOKENS = "tokens"
    AZURE = "azure"
    BURSTGPT = "burstgpt"
    DECISION_LOG = "decision-log"


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One recorded request.

    ``symbols`` is its prompt as a run (little-endian int32), ``num_prompt_tokens`` how many tokens that is.
    ``arrival_s`` is in seconds since the trace began, ``num_output_tokens`` what was generated; None where
    the trace does not say.  ``session`` names the conversation, ``output`` is the run of what was generated.
    ``body`` is what a raw log had: an OpenAI request's JSON.  ``line`` and ``file`` say where it stood.
    """

    symbols: bytes
    num_prompt_tokens: int
    arrival_s: float | None = None
    num_output_tokens: int | None = None
    namespace: Namespace = SHARED
    session: str | None = None
    output: bytes | None = None
    body: Mapping[str, Any] | None = None
    line: int = 0
    file: str = ""

    @property
    def num_symbols(self) -> int:
        """How long ``symbols`` is."""
        return len(self.symbols) // TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that could not be read: where, and why, in words."""

    file: str
    line: int
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.why}"


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded traffic, in the order of arrival.

    ``has_content`` is False for what tells lengths and times alone: nothing can be said of its hit rate.
    ``skipped`` are the lines that could not be read, ``notes`` sentences on how the rest was read.
    """

    name: str
    format: TraceFormat
    requests: list[TraceRequest]
    tokens_per_symbol: int = 1
    has_content: bool = True
    skipped: list[BadLine] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def num_prompt_tokens(self) -> int:
        """Of all requests."""
        return sum(request.num_prompt_tokens for request in self.requests)

    @property
    def has_times(self) -> bool:
        """Whether every request says when it came."""
        return all(request.arrival_s is not None for request in self.requests)
