"""Files of any format to one `Trace`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, assert_never

from headstart.errors import ConfigError, TraceError
from headstart.lab.traces.csv_lines import COLUMNS, read_csv
from headstart.lab.traces.detect import detect
from headstart.lab.traces.draft import Draft, Part
from headstart.lab.traces.faults import Faults
from headstart.lab.traces.hash_ids import block_size_of, read_hash_ids, settle
from headstart.lab.traces.join import finished, models_of
from headstart.lab.traces.openai_logs import read_openai
from headstart.lab.traces.records import Record, TraceFile
from headstart.lab.traces.sharegpt import read_sharegpt
from headstart.lab.traces.texts import PromptReader
from headstart.lab.traces.times import align, seconds_per_unit
from headstart.lab.traces.token_lines import read_tokens
from headstart.lab.traces.trace import Trace, TraceFormat

STANDARD_INPUT = "-"
_NUM_FIRST = 50  # lines that may tell the format
_BLOCK_SIZES = {TraceFormat.MOONCAKE: 512, TraceFormat.BAILIAN: 16}
_SECONDS = {TraceFormat.MOONCAKE: 1e-3, TraceFormat.BAILIAN: 1.0, TraceFormat.BURSTGPT: 1.0}


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
    faults = Faults(strict=strict)
    reading = _Reading(faults, format, _once(reader, paths), progress)
    parts = [reading.part(path) for path in paths]
    found = reading.format
    assert found is not None
    started_over = align(parts)
    notes = reading.notes
    notes += [
        f"the clock of {part.file} starts over, so its requests come after those before"
        for part, is_over in zip(parts, started_over, strict=True)
        if is_over
    ]
    block_size = 1
    if found in _BLOCK_SIZES:
        block_size = hash_block_size or block_size_of(parts, _BLOCK_SIZES[found])
        num_worlds = settle(parts, started_over, block_size, faults)
        if num_worlds > 1:
            notes.append(f"the hash ids are those of {num_worlds} traces, which share nothing")
    elif hash_block_size is not None:
        raise ConfigError(f"--hash-block-size is for hash ids, and {found} has none")
    for part in parts:
        if not part.drafts:
            raise _unreadable(part.file, found, faults)
    order = {part.file: number for number, part in enumerate(parts)}
    return Trace(
        name=" + ".join(Path(part.file).name for part in parts),
        format=found,
        requests=finished(parts),
        tokens_per_symbol=block_size,
        has_content=found not in COLUMNS,
        skipped=sorted(faults.found, key=lambda bad: (order[bad.file], bad.line)),
        notes=[*notes, *_notes(parts)],
    )


class _Reading:
    """One file after the other, of one format."""

    def __init__(
        self,
        faults: Faults,
        format_: TraceFormat | None,
        reader: Callable[[], PromptReader],
        progress: Callable[[int], None] | None,
    ) -> None:
        self.format = format_
        self.notes: list[str] = []
        self._is_told = format_ is not None
        self._faults = faults
        self._reader = reader
        self._progress = progress
        self._num_read = 0
        self._first_file = ""

    def part(self, path: str) -> Part:
        """The requests of the next file, their times in seconds."""
        name = "standard input" if path == STANDARD_INPUT else path
        with _opened(path) as file:
            traffic = TraceFile(file, name, self._tell)
            records = traffic.records(self._faults)
            first = list(islice(records, _NUM_FIRST))
            self._choose_format(first, name)
            part = Part(name, list(self._drafts(chain(first, records), name)))
            self._num_read += traffic.num_read
        assert self.format is not None
        if not part.drafts:
            raise _unreadable(name, self.format, self._faults)
        self._set_seconds(part, self.format)
        return part

    def _choose_format(self, first: list[Record], file: str) -> None:
        if self._is_told:
            return
        found = detect(first, file)
        if self.format is None:
            self.format, self._first_file = found, file
        elif found is not self.format:
            raise ConfigError(
                f"{self._first_file} is {self.format} and {file} is {found}: traces that are read together "
                "have one format"
            )

    def _drafts(self, records: Iterable[Record], file: str) -> Iterator[Draft]:
        faults, format_ = self._faults, self.format
        match format_:
            case TraceFormat.MOONCAKE | TraceFormat.BAILIAN:
                return read_hash_ids(records, file, faults)
            case TraceFormat.TOKENS:
                return read_tokens(records, file, faults)
            case TraceFormat.OPENAI:
                return read_openai(records, file, faults, self._reader)
            case TraceFormat.SHAREGPT:
                return read_sharegpt(records, file, faults, self._reader)
            case TraceFormat.AZURE | TraceFormat.BURSTGPT:
                return read_csv(records, file, faults, COLUMNS[format_])
            case None:
                raise AssertionError("a format is chosen before its lines are read")
        assert_never(format_)

    def _set_seconds(self, part: Part, format_: TraceFormat) -> None:
        unit = _SECONDS.get(format_)
        if unit is None:
            unit = seconds_per_unit([draft.time for draft in part.drafts if draft.time is not None])
            if unit != 1:
                self.notes.append(f"the times of {part.file} are read as units of {unit:g} s")
        for draft in part.drafts:
            if draft.time is not None:
                draft.time *= unit

    def _tell(self, num_read: int) -> None:
        if self._progress is not None:
            self._progress(self._num_read + num_read)


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
            raise ConfigError(f"{paths[0]} has text: name the model whose tokenizer it is to be read with")
        return reader()

    return read


def _unreadable(file: str, format_: TraceFormat, faults: Faults) -> TraceError:
    first = next((bad for bad in faults.found if bad.file == file), None)
    why = f"; the first fault is in line {first.line}: {first.why}" if first else ""
    return TraceError(f"no line of {file} can be read as {format_}{why}")


def _notes(parts: Sequence[Part]) -> Iterator[str]:
    models = models_of(parts)
    if len(models) > 1:
        names = ", ".join(name or "none named" for name in models[:8])
        yield (f"{len(models)} models were asked ({names}); they share nothing, and all are tokenised alike")
