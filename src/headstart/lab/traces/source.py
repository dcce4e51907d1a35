"""What a format's reader is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headstart.lab.traces.faults import Faults
from headstart.lab.traces.records import Record
from headstart.lab.traces.texts import PromptReader


@dataclass(frozen=True, slots=True)
class Source:
    """One file's records under its name.  ``reader`` is asked for only if there is text to tokenise."""

    records: Iterable[Record]
    file: str
    faults: Faults
    reader: Callable[[], PromptReader]

    def skip(self, line: int, why: str) -> None:
        """Report a line that cannot be read; raises ``TraceError`` if none may be skipped."""
        self.faults.add(self.file, line, why)
