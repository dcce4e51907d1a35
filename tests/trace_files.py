"""Small files of recorded traffic, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from headstart.cache.tokens import ints_of
from headstart.lab.traces.read import read_traces
from headstart.lab.traces.texts import PromptReader
from headstart.lab.traces.trace import Trace, TraceRequest


def write(path: Path, *lines: Any) -> str:
    """A file of these lines: texts as they are, anything else as JSON."""
    path.write_text("".join(f"{_line(line)}\n" for line in lines))
    return str(path)


def read(path: Path, *lines: Any, reader: PromptReader | None = None, **options: Any) -> Trace:
    """What a file of these lines is read as."""
    return read_traces([write(path, *lines)], reader=(lambda: reader) if reader else unused, **options)


def unused() -> NoReturn:
    """A reader for traces without text."""
    raise AssertionError("a tokenizer was asked for")


def tokens(request: TraceRequest) -> list[int]:
    """A request's symbols."""
    return ints_of(request.symbols)


def whys(trace: Trace) -> list[tuple[int, str]]:
    """The skipped lines and why."""
    return [(bad.line, bad.why) for bad in trace.skipped]


def _line(line: Any) -> str:
    return line if isinstance(line, str) else json.dumps(line)
