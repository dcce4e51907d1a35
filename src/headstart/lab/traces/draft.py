"""A request on its way into a trace: what its line says, before all files are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headstart.lab.traces.trace import TraceFormat


@dataclass(slots=True)
class Draft:
    """As a `TraceRequest`, but for what depends on other lines and files.

    ``time`` is in the file's own units and on its own clock.  ``symbols`` of hash ids are still the ids
    themselves, 64 bits each.  Namespaces need all models' names, so ``model`` and ``salt`` are apart.
    ``num_counted_tokens`` is how many prompt tokens the server counted.
    """

    line: int
    symbols: bytes
    num_prompt_tokens: int
    time: float | None = None
    num_output_tokens: int | None = None
    output: bytes | None = None
    salt: str | None = None
    model: str | None = None
    session: str | None = None
    body: Mapping[str, Any] | None = None
    num_counted_tokens: int | None = None


@dataclass(slots=True)
class Part:
    """One file's requests, in the order of its lines; ``seconds`` is one unit of their times."""

    file: str
    format: TraceFormat
    drafts: list[Draft]
    seconds: float = 1.0
