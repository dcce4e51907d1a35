"""Prompts that are token ids already: a bare list on each line, or an object with one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from headstart.cache.tokens import run_of
from headstart.errors import RequestError
from headstart.lab.traces.draft import Draft
from headstart.lab.traces.fields import Count, salt_of, text_of, told
from headstart.lab.traces.source import Source
from headstart.lab.traces.times import time_of

_TokenIds = list[Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]]


class _Row(msgspec.Struct):
    """An object; one of the first three fields must be there."""

    token_ids: _TokenIds | None = None
    prompt_token_ids: _TokenIds | None = None
    tokens: _TokenIds | None = None
    output_token_ids: _TokenIds | None = None
    num_output_tokens: Count | None = None
    timestamp: float | str | None = None
    cache_salt: str | None = None
    model: str | None = None
    session: str | int | None = None
    session_id: str | int | None = None


def read_tokens(source: Source) -> Iterator[Draft]:
    """The requests of a file."""
    decode = msgspec.json.Decoder(_Row).decode
    decode_bare = msgspec.json.Decoder(_TokenIds).decode
    for line, data in source.records:
        try:
            row = _Row(decode_bare(data)) if data.startswith(b"[") else decode(data)
            yield _draft(line, row)
        except (msgspec.DecodeError, RecursionError) as error:
            source.skip(line, told(error))
        except (ValueError, RequestError) as error:
            source.skip(line, str(error))


def _draft(line: int, row: _Row) -> Draft:
    given = [ids for ids in (row.token_ids, row.prompt_token_ids, row.tokens) if ids is not None]
    if len(given) != 1:
        names = "token_ids, prompt_token_ids or tokens"
        raise ValueError(f"it has {len(given)} of the fields {names}, and must have one")
    if not given[0]:
        raise ValueError("the prompt has no tokens")
    output = row.output_token_ids
    return Draft(
        line,
        bytes(run_of(given[0])),
        len(given[0]),
        time=time_of(row.timestamp),
        num_output_tokens=row.num_output_tokens if output is None else len(output),
        output=None if output is None else bytes(run_of(output)),
        salt=salt_of(row.cache_salt),
        model=row.model,
        session=text_of(row.session if row.session is not None else row.session_id),
    )
