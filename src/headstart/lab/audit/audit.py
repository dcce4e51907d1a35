"""All checks, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from headstart.lab.audit.cache import check_cache, check_isolation
from headstart.lab.audit.line import Line, Word
from headstart.lab.audit.room import check_room
from headstart.lab.audit.target import AuditError, Target
from headstart.lab.audit.template import check_template, local_today


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found; ``engine`` is None where the metrics do not say which one it is."""

    url: str
    model: str
    engine: str | None
    lines: tuple[Line, ...]

    @property
    def worst(self) -> Word:
        """The worst word of all; what is unknown counts as well."""
        order = (Word.FAIL, Word.WARN, Word.OK, Word.UNKNOWN)
        return next((word for word in order if any(line.word is word for line in self.lines)), Word.UNKNOWN)

    def fields(self) -> dict[str, Any]:
        """Everything, in JSON's types."""
        return asdict(self)


def audit(target: Target, *, today: date | None = None, heard: Callable[[Line], None] | None = None) -> Audit:
    """Run the checklist; ``heard`` is told of each line as it comes.

    A group of checks that breaks is a line that says so, and the others go on.
    """
    lines = []
    groups: dict[str, Iterator[Line]] = {
        "template": check_template(target, today or local_today()),
        "cache": check_cache(target),
        "isolation": check_isolation(target),
        "room": check_room(target),
    }
    for name, group in groups.items():
        for line in _guarded(name, group):
            lines.append(line)
            if heard is not None:
                heard(line)
    engine = target.engine()
    return Audit(target.url, target.model, None if engine is None else str(engine), tuple(lines))


def _guarded(name: str, group: Iterator[Line]) -> Iterator[Line]:
    try:
        yield from group
    except AuditError as error:
        yield Line(name, Word.FAIL, f"it could not be checked: {error}", "see the server's log")
