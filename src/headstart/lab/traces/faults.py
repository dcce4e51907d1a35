"""Lines that cannot be read: counted, or the end of all reading."""

from __future__ import annotations

from headstart.errors import TraceError
from headstart.lab.traces.trace import BadLine


class Faults:
    """Where everything that reads a trace reports what it cannot.

    ``strict`` makes the first fault an error, a ``TraceError`` that says file, line and why.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.found: list[BadLine] = []
        """What was skipped, in the order in which it was met."""
        self._strict = strict

    def add(self, file: str, line: int, why: str) -> None:
        """Skip a line, or raise ``TraceError``."""
        fault = BadLine(file, line, why)
        if self._strict:
            raise TraceError(str(fault))
        self.found.append(fault)
