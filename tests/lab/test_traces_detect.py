from __future__ import annotations

from typing import Any

import pytest

from headstart.errors import TraceError
from headstart.lab.traces.detect import detect
from headstart.lab.traces.records import Record
from headstart.lab.traces.trace import TraceFormat


def found(*lines: bytes) -> TraceFormat:
    return detect([Record(number, line) for number, line in enumerate(lines, 1)], "a file")


@pytest.mark.parametrize(
    ("line", "format_"),
    [
        (b'{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}', "mooncake"),
        (b'{"chat_id": 1, "parent_chat_id": -1, "hash_ids": [0]}', "bailian"),
        (b'{"messages": []}', "openai"),
        (b'{"prompt": "a", "model": "m"}', "openai"),
        (b'{"custom_id": "1", "url": "/v1/chat/completions", "body": {}}', "openai"),
        (b'{"request": "{}", "created": 1}', "openai"),
        (b'{"id": "1", "conversations": []}', "sharegpt"),
        (b'{"conversation": []}', "sharegpt"),
        (b"[1, 2, 3]", "tokens"),
        (b'{"token_ids": [1]}', "tokens"),
        (b'{"prompt_token_ids": [1], "timestamp": 1}', "tokens"),
        (b'{"tokens": [1]}', "tokens"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens", "azure"),
        (b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "burstgpt"),
        (b'"Timestamp","Session ID","Elapsed time","Model","Request tokens","Response tokens"', "burstgpt"),
    ],
)
def test_each_format_is_known_by_its_first_line(line: bytes, format_: str) -> None:
    assert found(line) is TraceFormat(format_)


def test_a_malformed_line_does_not_decide() -> None:
    assert found(b'{"timestamp": 0, "inp', b"", b"[1, 2]") is TraceFormat.TOKENS


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (b'{"name": 1, "secret": "hidden"}', "line 1 is a JSON object with 'name', 'secret'"),
        (b"{}", "line 1 is a JSON object with no fields"),
        (b'["a"]', "line 1 is a JSON list that is no list of token ids"),
        (b"time,user", "line 1 is neither JSON nor the header of a known CSV, but like one of the columns"),
        (b"GET /v1/models", "line 1 is neither JSON nor the header of a CSV"),
        (b"{", "line 1 is neither JSON nor the header of a CSV"),
        (b"\xff\x00,\x01", "line 1 is neither JSON nor the header of a known CSV"),
        (b"[" * 100_000, "line 1 is neither JSON nor the header of a CSV"),
        (b"42", "line 1 is neither JSON nor the header of a CSV"),
    ],
)
def test_an_unknown_format_is_told_with_what_was_seen_and_what_is_known(line: bytes, seen: str) -> None:
    with pytest.raises(TraceError) as caught:
        found(line)
    told = str(caught.value)
    assert told.startswith(f"a file is no trace of a known format: {seen}")
    assert all(format_ in told for format_ in TraceFormat)
    assert "hidden" not in told


def test_many_fields_are_not_all_told() -> None:
    fields: dict[str, Any] = {f"field{number}": number for number in range(100)}
    with pytest.raises(TraceError, match=r"'field7', …\."):
        found(str(fields).replace("'", '"').encode())


def test_an_empty_file_is_told() -> None:
    with pytest.raises(TraceError, match="a file is empty"):
        found()
