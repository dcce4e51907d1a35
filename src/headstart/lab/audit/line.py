"""One line of the checklist."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Word(StrEnum):
    """How a check ended; ``unknown`` where the server does not tell enough."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Line:
    """What was checked, how it ended, ``why``, and what to ``change``; nothing where all is well."""

    name: str
    word: Word
    why: str
    change: str = ""
