"""Files of any format to one `Trace`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from headstart.errors import ConfigError, TraceError
from headstart.lab.traces.detect import detect
from headstart.lab.traces.draft import Part
from headstart.lab.traces.faults import Faults
from headstart.lab.traces.formats import RULES
from headstart.lab.traces.join import join
from headstart.lab.traces.records import TraceFile
from headstart.lab.traces.source import Source
from headstart.lab.traces.texts import PromptReader
from headstart.lab.traces.trace import Trace, TraceFormat

STANDARD_INPUT = "-"
_NUM_FIRST = 50  # lines that may tell the format


def read_traces(
    paths: Sequence[str],
    *,
    format: TraceFormat | None = None,  # noqa: A002 - what the option is called
    reader: Callable[[], PromptReader] | None = None,
    strict: bool = False,
    progress: Callable[[int], None] | None = None,
    hash_block_size: int | None = None,
) -> Trace:
    """The traffic that these files record, one after the other; ``-`` is standard input.

    All must be of one ``format``, which their first lines tell unless it is given.  ``reader`` is asked for
    a tokenizer if there is text to tokenise.  Lines that cannot be read are in ``skipped``; ``strict`` makes
    the first of them an error.  ``progress`` is told how many bytes of all files were read, as they lie on
    the disk.  ``hash_block_size`` is how many tokens a hash id stands for; else the lines' lengths tell it.

    What becomes of several files' clocks and hash ids is told in `times.align` and `hash_ids.settle`.
    Raises ``TraceError`` for a file that cannot be read or has no request that can, and ``ConfigError`` for
    files or options that do not go together.
    """
    if not paths:
        raise ConfigError("there is no trace to read: name at least one file, or - for standard input")
    if paths.count(STANDARD_INPUT) > 1:
        raise ConfigError("standard input (-) can be read only once")
    if hash_block_size is not None and hash_block_size < 1:
        raise ConfigError(f"a hash id stands for at least 1 token, not {hash_block_size}")
    faults, parts, num_read = Faults(strict=strict), list[Part](), 0
    lazy = _once(reader, paths)
    for path in paths:
        with _opened(path) as file:
            name = "standard input" if path == STANDARD_INPUT else path
            traffic = TraceFile(file, name, progress, already_read=num_read)
            parts.append(_part(traffic, format, faults, lazy))
            num_read = traffic.num_read
    return join(parts, faults, hash_block_size)


def _part(
    file: TraceFile, format_: TraceFormat | None, faults: Faults, reader: Callable[[], PromptReader]
) -> Part:
    records = file.records(faults)
    first = list(islice(records, _NUM_FIRST))
    found = format_ or detect(first, file.name)
    source = Source(chain(first, records), file.name, faults, reader)
    return Part(file.name, found, list(RULES[found].read(source)))


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    try:
        with Path(path).open("rb") as file:
            yield file
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from error


def _once(reader: Callable[[], PromptReader] | None, paths: Sequence[str]) -> Callable[[], PromptReader]:
    """The reader, made at its first use."""

    @cache
    def read() -> PromptReader:
        if reader is None:
            raise ConfigError(f"{paths[0]} has text: name the model whose tokenizer is to read it")
        return reader()

    return read
