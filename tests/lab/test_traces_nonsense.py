"""Whatever stands in a file: it is read, or lines are skipped, or one sentence says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headstart.errors import HeadstartError
from headstart.lab.traces.read import read_traces
from headstart.lab.traces.texts import PromptReader
from headstart.lab.traces.trace import Trace, TraceFormat

QUESTION = {"role": "user", "content": [{"type": "text", "text": "a"}]}
CHAT = {"model": "m", "messages": [QUESTION, {"role": "assistant", "content": "b"}], "tools": [{}]}
EXAMPLES: list[Any] = [
    {"timestamp": 1, "input_length": 700, "output_length": 2, "hash_ids": [0, 1], "session_id": "a"},
    {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, "hash_ids": [1, 2]},
    {**CHAT, "system": "b", "cache_salt": "s", "user": "u", "chat_template_kwargs": {"x": 1}},
    {"request": json.dumps(CHAT), "response": {"choices": [{"message": {"content": "c"}}], "usage": {}}},
    {"body": {"prompt": ["a", [1, 2]]}, "created": "2026-01-31", "usage": {"completion_tokens": 3}},
    {"id": "x", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    {"token_ids": [1, 2], "timestamp": "5", "output_token_ids": [3], "cache_salt": "s", "session": 1},
    [1, 2, 3],
]
TABLES = [
    ["TIMESTAMP,ContextTokens,GeneratedTokens", "2026-01-31 12:00:00,5,6", '"2026-01-31 12:00:00.5","5",""'],
    ["Timestamp,Model,Request tokens,Response tokens", "5,m,3,2", ",,3,2", "6.5,m,3,99999999999"],
]
SCALARS = [None, True, 0, -1, 17, 2**31, 2**63, 2**64, -(2**63), 1.5, 1e300]
TEXTS = ["", "é", "{}", "nan", "1e999", "2026-01-31", '{"prompt": "a"}']


def value(chance: Random, depth: int = 0) -> Any:
    kind = chance.random()
    if kind < 0.6 or depth > 2:
        return chance.choice([*SCALARS, *TEXTS])
    if kind < 0.75:
        return [value(chance, depth + 1) for _ in range(chance.randrange(3))]
    if kind < 0.9:
        return {chance.choice("ab"): value(chance, depth + 1) for _ in range(chance.randrange(3))}
    return chance.choice(EXAMPLES)


def altered(chance: Random, record: Any) -> Any:
    """The record with one of its values, at any depth, replaced or removed."""
    if isinstance(record, dict) and record and chance.random() < 0.9:
        name = chance.choice(sorted(record))
        if chance.random() < 0.1:
            return {key: kept for key, kept in record.items() if key != name}
        return {**record, name: altered(chance, record[name])}
    if isinstance(record, list) and record and chance.random() < 0.6:
        place = chance.randrange(len(record))
        return [*record[:place], altered(chance, record[place]), *record[place + 1 :]]
    return value(chance)


def a_file(chance: Random) -> bytes:
    """Lines of an example, some altered, and of others; now and then as one JSON list, or a byte spoiled."""
    if chance.random() < 0.1:
        lines = chance.choice(TABLES)
        data = "\n".join([lines[0], *chance.choices(lines, k=4)]).encode()
    else:
        example = chance.choice(EXAMPLES)
        records = []
        for _ in range(chance.randint(1, 4)):
            record = example if chance.random() < 0.8 else chance.choice(EXAMPLES)
            for _ in range(chance.randrange(3)):
                record = altered(chance, record)
            records.append(record)
        data = json.dumps(records).encode()
        if chance.random() < 0.8:
            data = "\n".join(map(json.dumps, records)).encode()
    if chance.random() < 0.1:
        place = chance.randrange(len(data))
        data = data[:place] + chance.randbytes(1) + data[place + 1 :]
    return data


def check(trace: Trace) -> None:
    assert trace.requests
    for request in trace.requests:
        assert request.num_prompt_tokens > 0
        if trace.has_content:
            assert request.num_symbols == -(-request.num_prompt_tokens // trace.tokens_per_symbol)
    if trace.has_times:
        arrivals = [request.arrival_s or 0.0 for request in trace.requests]
        assert arrivals == sorted(arrivals)
        assert arrivals[0] == 0
    assert all(bad.why and bad.line > 0 for bad in trace.skipped)


@pytest.mark.parametrize("seed", range(4))
def test_nonsense_is_read_or_refused_in_words(tmp_path: Path, tiny_reader: PromptReader, seed: int) -> None:
    chance = Random(seed)
    readers = [tiny_reader, PromptReader(tiny_reader.tokenizer)]
    num_read = 0
    for number in range(500):
        path = tmp_path / f"{number}"
        path.write_bytes(a_file(chance))
        options = {"format": chance.choice([None, None, None, *TraceFormat]), "strict": chance.random() < 0.1}
        paths = [str(path)] * chance.randint(1, 2)
        try:
            trace = read_traces(paths, reader=lambda: chance.choice(readers), **options)  # type: ignore[arg-type]
        except HeadstartError:
            continue
        except Exception as error:
            raise AssertionError(f"{path.read_bytes()!r} with {options}") from error
        check(trace)
        num_read += 1
    assert 100 < num_read < 400
