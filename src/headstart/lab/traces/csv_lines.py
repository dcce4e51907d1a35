"""CSVs that tell when requests came and how long they were, and nothing of what was in them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from headstart.errors import TraceError, shown
from headstart.lab.traces.draft import Draft
from headstart.lab.traces.fields import count_of, text_of
from headstart.lab.traces.source import Source
from headstart.lab.traces.times import time_of
from headstart.lab.traces.trace import TraceFormat

_MOST_DIGITS = 10  # of a number of tokens; more take their time to become a number


class Columns(NamedTuple):
    """The names of the columns that are read, in lower case."""

    time: str
    prompt: str
    output: str
    model: str | None = None
    session: str | None = None

    def are_in(self, header: Iterable[str]) -> bool:
        """Whether a file with this header has those that matter."""
        return {self.time, self.prompt, self.output} <= set(header)


COLUMNS: Mapping[TraceFormat, Columns] = {
    TraceFormat.AZURE: Columns("timestamp", "contexttokens", "generatedtokens"),
    TraceFormat.BURSTGPT: Columns("timestamp", "request tokens", "response tokens", "model", "session id"),
}


def header_of(line: bytes) -> list[str]:
    """The names of a CSV's columns, in lower case; none if it is no line of one."""
    try:
        [names] = csv.reader([line.decode("utf-8", "replace")])
    except csv.Error:
        return []
    return [name.strip().lower() for name in names]


def read_csv(source: Source, columns: Columns) -> Iterator[Draft]:
    """The requests of a file, without symbols.  Raises ``TraceError`` without a header of these columns."""
    lines = iter(source.records)
    first = next(lines, None)
    header = header_of(first.data) if first is not None else []
    if not columns.are_in(header):
        wanted = f"{columns.time}, {columns.prompt} and {columns.output}"
        raise TraceError(f"{source.file} must begin with a header that has the columns {wanted}")
    for line, data in lines:
        try:
            [values] = csv.reader([data.decode()], strict=True)
            if len(values) != len(header):
                raise ValueError(f"it has {len(values)} values for {len(header)} columns")
            yield _draft(line, dict(zip(header, values, strict=True)), columns)
        except (ValueError, csv.Error) as error:
            source.skip(line, str(error))


def _draft(line: int, row: Mapping[str, str], columns: Columns) -> Draft:
    num_prompt_tokens = _count(row, columns.prompt)
    if not num_prompt_tokens:
        raise ValueError("a prompt has at least one token")
    return Draft(
        line,
        b"",
        num_prompt_tokens,
        time=time_of(row[columns.time]),
        num_output_tokens=_count(row, columns.output),
        model=text_of(row.get(columns.model)) if columns.model else None,
        session=text_of(row.get(columns.session)) if columns.session else None,
    )


def _count(row: Mapping[str, str], name: str) -> int:
    text = row[name].strip()
    count = count_of(int(text)) if text.isdecimal() and len(text) <= _MOST_DIGITS else None
    if count is None:
        raise ValueError(f"{name} must be a number of tokens, not {shown(text)}")
    return count
