"""Which format a file has, from its first lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headstart.errors import TraceError, shown
from headstart.lab.traces.csv_lines import COLUMNS, header_of
from headstart.lab.traces.openai_logs import PROMPTS, WRAPPERS
from headstart.lab.traces.records import Record
from headstart.lab.traces.trace import TraceFormat

_KEYS: Sequence[tuple[TraceFormat, frozenset[str]]] = (
    (TraceFormat.SHAREGPT, frozenset({"conversations", "conversation"})),
    (TraceFormat.TOKENS, frozenset({"token_ids", "prompt_token_ids", "tokens"})),
    (TraceFormat.OPENAI, frozenset({*PROMPTS, *WRAPPERS})),
)
_CHATS = {"chat_id", "parent_chat_id"}
_MOST_KEYS = 8  # that a message names
_KNOWN = (
    "Known are mooncake and bailian (lines with hash_ids), openai (with messages, a prompt, or a body or "
    "request that has them), sharegpt (conversations), tokens (token_ids, or a list of them on each line), "
    "and the CSVs azure and burstgpt (by their header); --format names one"
)


def detect(records: Sequence[Record], file: str) -> TraceFormat:
    """The format of a file that begins like this: the first line that tells one decides.

    Raises ``TraceError`` that says what was seen instead.
    """
    if not records:
        raise TraceError(f"{file} is empty")
    for record in records:
        found = _format_of(record.data)
        if found is not None:
            return found
    raise TraceError(f"{file} is no trace of a known format: {_seen(records[0])}. {_KNOWN}")


def _format_of(data: bytes) -> TraceFormat | None:
    value = _decoded(data)
    if isinstance(value, list):
        is_prompt = bool(value) and all(isinstance(token, int) for token in value)
        return TraceFormat.TOKENS if is_prompt else None
    if isinstance(value, Mapping):
        keys = value.keys()
        if "hash_ids" in keys:
            return TraceFormat.BAILIAN if keys & _CHATS else TraceFormat.MOONCAKE
        return next((format_ for format_, names in _KEYS if keys & names), None)
    header = header_of(data[:4096])
    return next((format_ for format_, columns in COLUMNS.items() if columns.are_in(header)), None)


def _seen(record: Record) -> str:
    value = _decoded(record.data)
    where = f"line {record.line} is"
    if isinstance(value, Mapping):
        names = ", ".join(map(shown, list(value)[:_MOST_KEYS])) or "no fields"
        return f"{where} a JSON object with {names}{', …' if len(value) > _MOST_KEYS else ''}"
    if isinstance(value, list):
        return f"{where} a JSON list that is no list of token ids"
    if b"," in record.data and not record.data.startswith((b"{", b"[")):
        columns = ", ".join(map(shown, header_of(record.data[:4096])[:_MOST_KEYS]))
        return f"{where} neither JSON nor the header of a known CSV, but like one of the columns {columns}"
    return f"{where} neither JSON nor the header of a CSV"


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
