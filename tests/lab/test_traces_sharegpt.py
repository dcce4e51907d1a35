from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headstart.lab.traces.texts import PromptReader
from headstart.lab.traces.trace import Trace
from tests.trace_files import read, tokens, whys


def turn(who: str, text: str) -> dict[str, str]:
    return {"from": who, "value": text}


TALK: dict[str, Any] = {
    "id": "abc_0",
    "conversations": [
        turn("system", "Be brief."),
        turn("human", "One?"),
        turn("gpt", "Two."),
        turn("human", "Three?"),
        turn("gpt", "Four."),
        turn("human", "Five?"),
    ],
}
OTHER = {"id": "abc_1", "conversations": [turn("human", "Six?"), turn("gpt", "Seven.")]}


def prompts(trace: Trace, reader: PromptReader) -> list[str]:
    return [
        reader.text(tokens(request)).replace("<|im_start|>", "[").replace("<|im_end|>\n", "]")
        for request in trace.requests
    ]


@pytest.mark.parametrize(
    "lines",
    [[TALK, OTHER], [json.dumps([TALK, OTHER])], [json.dumps([TALK, OTHER], indent=2)]],
    ids=["lines", "list", "indented"],
)
def test_each_question_is_a_request_with_all_before(
    tmp_path: Path, tiny_reader: PromptReader, lines: list[Any]
) -> None:
    trace = read(tmp_path / "sharegpt.json", *lines, reader=tiny_reader, strict=True)
    begin = "[system\nBe brief.][user\nOne?]"
    assert prompts(trace, tiny_reader) == [
        f"{begin}[assistant\n",
        f"{begin}[assistant\nTwo.][user\nThree?][assistant\n",
        f"{begin}[assistant\nTwo.][user\nThree?][assistant\nFour.][user\nFive?][assistant\n",
        "[user\nSix?][assistant\n",
    ]
    outputs = [request.output for request in trace.requests]
    encoded = [tiny_reader.tokenizer.encode(text) for text in ("Two.", "Four.", "Seven.")]
    first, second, fourth = (b"".join(t.to_bytes(4, "little") for t in ids) for ids in encoded)
    assert outputs == [first, second, None, fourth]
    assert [request.num_output_tokens for request in trace.requests] == [
        *map(len, encoded[:2]),
        None,
        len(encoded[2]),
    ]
    assert [request.session for request in trace.requests] == ["abc_0"] * 3 + ["abc_1"]
    assert not trace.has_times
    assert trace.requests[0].body == {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One?"}]
    }


def test_lines_of_a_list_are_where_conversations_begin(tmp_path: Path, tiny_reader: PromptReader) -> None:
    text = "[\n" + json.dumps(OTHER) + ",\n\n" + json.dumps(OTHER, indent=1) + "]"
    trace = read(tmp_path / "sharegpt.json", text, reader=tiny_reader)
    assert [request.line for request in trace.requests] == [2, 4]


def test_openais_words_and_other_names(tmp_path: Path, tiny_reader: PromptReader) -> None:
    said = [("user", "Six?"), ("assistant", "Seven."), ("user", "Eight?")]
    line = {
        "conversation_id": 5,
        "conversation": [{"role": role, "content": text, "redacted": False} for role, text in said],
    }
    trace = read(tmp_path / "chats.jsonl", line, reader=tiny_reader)
    assert prompts(trace, tiny_reader)[1] == "[user\nSix?][assistant\nSeven.][user\nEight?][assistant\n"
    assert [request.session for request in trace.requests] == ["5", "5"]


def test_questions_in_a_row_are_one_request(tmp_path: Path, tiny_reader: PromptReader) -> None:
    turns = [turn("human", "Six?"), turn("human", "Hello?"), turn("bing", "Seven.")]
    trace = read(tmp_path / "s.jsonl", {"conversations": turns}, reader=tiny_reader)
    assert prompts(trace, tiny_reader) == ["[user\nSix?][user\nHello?][assistant\n"]
    assert trace.requests[0].session == "line 1"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"id": "a", "conversations": []}, "nobody asks anything in this conversation"),
        ({"id": "a", "conversations": [turn("gpt", "Hi.")]}, "nobody asks anything in this conversation"),
        ({"id": "a"}, "nobody asks anything in this conversation"),
        ({"conversations": [turn("alien", "Hi.")]}, "a turn is from human, user, gpt,"),
        ({"conversations": [{"from": "human"}]}, "a turn is from human, user, gpt,"),
        ({"conversations": [{"from": "human", "value": 3}]}, "Expected `str | null`, got `int`"),
        ({"conversations": "none"}, "Expected `array | null`, got `str`"),
        ("nonsense", "it is no JSON: "),
    ],
)
def test_a_malformed_conversation(tmp_path: Path, tiny_reader: PromptReader, line: Any, why: str) -> None:
    trace = read(tmp_path / "s.jsonl", OTHER, line, TALK, reader=tiny_reader)
    [(number, told)] = whys(trace)
    assert number == 2
    assert told.startswith(why)
    assert len(trace.requests) == 4
