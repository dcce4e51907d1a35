"""What a check of a prompt says: problems, each at a place, with a price and a fix; and what stays shareable."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""A way into a JSON value: keys and indices."""

Unit = Literal["tokens", "characters"]


class Severity(StrEnum):
    """How bad a problem is, the mildest first."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """To compare them by."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Spot:
    """A problem as a rule finds it: at some character of a part of a body, or of a template's source.

    ``where`` is the part's path in the body, and empty for a template.  ``what`` is a sentence without any
    text of the prompt.  ``num_lost`` are what cannot be shared because of it, in the ruler's unit, and
    ``position`` is where in the prompt that begins; None where neither is known.
    """

    rule: str
    severity: Severity
    where: Path
    offset: int
    what: str
    fix: str
    excerpt: str | None = None
    num_lost: int | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A `Spot` of a file: ``line`` and ``column`` count from 1, ``part`` is for people.

    ``num_bodies`` says in how many of the file's bodies the rule found the same part at fault.
    """

    rule: str
    severity: Severity
    line: int
    column: int
    part: str
    what: str
    fix: str
    excerpt: str | None
    num_lost: int | None
    position: int | None
    num_bodies: int = 1


@dataclass(frozen=True, slots=True)
class Sharing:
    """How much of one prompt requests can share.

    ``first_variable`` is where the first thing stands that varies for certain, None if nothing does before
    the last message.  ``num_now`` can be shared as it is, ``num_after`` when all of that moves behind.
    """

    num_total: int
    first_variable: int | None
    num_now: int
    num_after: int


@dataclass(frozen=True, slots=True)
class LintReport:
    """All about one file.  ``sharing`` has an entry for each prompt of it."""

    file: str
    kind: Literal["body", "bodies", "chat template", "prompt template"]
    unit: Unit
    problems: list[Problem]
    sharing: list[Sharing]

    def at_least(self, severity: Severity) -> int:
        """How many problems are so severe, or more."""
        return sum(problem.severity.rank >= severity.rank for problem in self.problems)


def spelled(path: Path) -> str:
    """``messages[0].content``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")
