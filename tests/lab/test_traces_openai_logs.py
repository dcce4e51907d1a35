from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headstart.cache import Namespace
from headstart.errors import ConfigError
from headstart.lab.traces.read import read_traces
from headstart.lab.traces.texts import PromptReader
from headstart.lab.traces.trace import TraceFormat, TraceRequest
from tests.trace_files import read, tokens, whys, write

EPOCH = 1_769_860_800  # 2026-01-31T12:00:00Z
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is it missing?"}]
CHAT: dict[str, Any] = {"model": "m", "messages": MESSAGES}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "Once upon a time", "max_tokens": 5}
PROMPT = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy is it missing?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def one(path: Path, reader: PromptReader, line: Any) -> TraceRequest:
    trace = read(path / "log.jsonl", line, reader=reader, strict=True)
    assert trace.format is TraceFormat.OPENAI
    [request] = trace.requests
    return request


def test_a_chat_becomes_what_the_template_makes_of_it(tmp_path: Path, tiny_reader: PromptReader) -> None:
    request = one(tmp_path, tiny_reader, CHAT)
    assert tiny_reader.text(tokens(request)) == PROMPT
    assert request.num_prompt_tokens == request.num_symbols
    assert request.body == CHAT
    assert (request.line, request.arrival_s, request.output, request.session) == (1, None, None, None)


def test_a_completion_is_its_prompt(tmp_path: Path, tiny_reader: PromptReader) -> None:
    assert tiny_reader.text(tokens(one(tmp_path, tiny_reader, COMPLETION))) == "Once upon a time"


def test_token_ids_need_no_tokenizer(tmp_path: Path) -> None:
    trace = read(tmp_path / "log.jsonl", {"prompt": [5, 6, 7]}, {"prompt": [[1], [2, 3]]})
    assert [tokens(request) for request in trace.requests] == [[5, 6, 7], [1], [2, 3]]
    assert [request.line for request in trace.requests] == [1, 2, 2]


def test_several_prompts_are_several_requests(tmp_path: Path, tiny_reader: PromptReader) -> None:
    log = {"request": {"prompt": ["a b", "c"]}, "response": {"usage": {"completion_tokens": 9}}}
    trace = read(tmp_path / "log.jsonl", log, reader=tiny_reader)
    assert [tiny_reader.text(tokens(request)) for request in trace.requests] == ["a b", "c"]
    assert [request.body for request in trace.requests] == [{"prompt": "a b"}, {"prompt": "c"}]
    assert [request.num_output_tokens for request in trace.requests] == [None, None]


@pytest.mark.parametrize(
    "line",
    [
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": CHAT},
        {"request": CHAT, "response": None},
        {"request": json.dumps(CHAT)},
        {"request": {"method": "POST", "headers": {}, "body": CHAT}},
        {"request": "POST /v1/chat/completions", "body": json.dumps(CHAT)},
        {"request_body": CHAT},
        {"proxy_server_request": {"url": "http://proxy", "body": CHAT}},
        {"messages": json.dumps(MESSAGES), "model": "m"},
        {"kwargs": {**CHAT, "prompt": None}},
        {"messages": None, "request": CHAT},
        {"messages": {}, "proxy_server_request": CHAT, "response": {}},
        {"messages": "{}", "proxy_server_request": json.dumps(CHAT), "response": "{}"},
        {"messages": [], "prompt": "", "request": CHAT},
    ],
)
def test_what_is_wrapped_around_a_request(tmp_path: Path, tiny_reader: PromptReader, line: Any) -> None:
    assert tiny_reader.text(tokens(one(tmp_path, tiny_reader, line))) == PROMPT


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"timestamp": EPOCH}, {"timestamp": EPOCH + 1.5}),
        ({"created": EPOCH * 1000}, {"created": EPOCH * 1000 + 1500}),
        ({"start_time": "2026-01-31T12:00:00Z"}, {"start_time": "2026-01-31T12:00:01.500+00:00"}),
        ({"startTime": "2026-01-31 12:00:00"}, {"startTime": "2026-01-31 12:00:01.5"}),
        ({"arrival_time": 0.25}, {"arrival_time": 1.75}),
        ({"timestamp": str(EPOCH)}, {"timestamp": f"{EPOCH + 1}.5"}),
    ],
)
@pytest.mark.parametrize("outside", [True, False])
def test_times(
    tmp_path: Path, tiny_reader: PromptReader, first: dict[str, Any], second: dict[str, Any], *, outside: bool
) -> None:
    lines = [{"request": CHAT, **time} if outside else {**CHAT, **time} for time in (second, first)]
    trace = read(tmp_path / "log.jsonl", *lines, reader=tiny_reader)
    assert [(request.line, request.arrival_s) for request in trace.requests] == [(2, 0), (1, 1.5)]


@pytest.mark.parametrize(
    ("answer", "text", "num_tokens"),
    [
        ({"response": {"choices": [{"message": {"content": "Just so."}}]}}, "Just so.", None),
        (
            {"response": {"choices": [{"text": "Just so."}], "usage": {"completion_tokens": 70}}},
            "Just so.",
            70,
        ),
        ({"response": {"status_code": 200, "body": {"choices": [{"text": "So."}]}}}, "So.", None),
        ({"response": json.dumps({"choices": [{"text": "So."}]})}, "So.", None),
        ({"response": "42"}, "42", None),
        ({"output": "Just so."}, "Just so.", None),
        ({"choices": [{"text": "So."}], "usage": {"completion_tokens": 2}}, "So.", 2),
        ({"response": {"choices": [{"message": {"content": None, "tool_calls": [{}]}}]}}, None, None),
        ({"usage": {"output_tokens": 12}}, None, 12),
        ({"completion_tokens": 12}, None, 12),
        ({"usage": {"completion_tokens": "many"}}, None, None),
        ({"response": {"choices": []}}, None, None),
        ({"response": [1, 2]}, None, None),
        ({}, None, None),
    ],
)
def test_answers(
    tmp_path: Path,
    tiny_reader: PromptReader,
    answer: dict[str, Any],
    text: str | None,
    num_tokens: int | None,
) -> None:
    request = one(tmp_path, tiny_reader, {"request": COMPLETION, **answer})
    output = None if text is None else tiny_reader.tokenizer.encode(text)
    assert request.output == (None if output is None else b"".join(t.to_bytes(4, "little") for t in output))
    assert request.num_output_tokens == (len(output) if num_tokens is None and output else num_tokens)


def test_salts_sessions_and_users(tmp_path: Path, tiny_reader: PromptReader) -> None:
    trace = read(
        tmp_path / "log.jsonl",
        {**CHAT, "cache_salt": "tom", "user": "u", "session_id": "s"},
        {"request": {**CHAT, "user": "u"}, "cache_salt": "eve"},
        {"request": CHAT, "conversation_id": 17},
        CHAT,
        reader=tiny_reader,
    )
    assert [request.namespace.salt for request in trace.requests] == ["tom", "eve", None, None]
    assert [request.session for request in trace.requests] == ["s", "u", "17", None]
    assert {request.namespace.adapter for request in trace.requests} == {None}


def test_models_and_adapters_share_nothing(tmp_path: Path, tiny_reader: PromptReader) -> None:
    trace = read(tmp_path / "log.jsonl", CHAT, {**CHAT, "model": "my-lora"}, reader=tiny_reader)
    first, second = trace.requests
    assert first.symbols == second.symbols
    assert first.namespace != second.namespace
    assert second.namespace.adapter is not None
    assert second.namespace.adapter.name == "my-lora"
    assert second.namespace != Namespace(salt="my-lora")


def test_tools_are_part_of_the_prompt(tmp_path: Path, tiny_reader: PromptReader) -> None:
    tools = [{"type": "function", "function": {"name": "look_up"}}]
    plain = PromptReader(tiny_reader.tokenizer)  # its ChatML writes tools, the tiny template does not
    body = one(tmp_path, plain, {**CHAT, "tools": tools})
    litellm = one(tmp_path, plain, {**CHAT, "model_parameters": {"tools": tools, "temperature": 0}})
    assert body.symbols == litellm.symbols
    assert "look_up" in plain.text(tokens(body))
    assert litellm.body is not None
    assert litellm.body["tools"] == tools


def test_a_system_prompt_of_its_own_comes_first(tmp_path: Path, tiny_reader: PromptReader) -> None:
    apart = one(tmp_path, tiny_reader, {"system": "Be brief.", "messages": MESSAGES[1:]})
    parts = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    in_parts = one(tmp_path, tiny_reader, {"system": parts, "messages": MESSAGES[1:]})
    assert tiny_reader.text(tokens(apart)) == tiny_reader.text(tokens(in_parts)) == PROMPT


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"body": {"input": "a"}}, "there is no request with messages or a prompt in it"),
        ({"request": "GET /health"}, "there is no request with messages or a prompt in it"),
        ([1, 2], "there is no request with messages or a prompt in it"),
        ("null", "there is no request with messages or a prompt in it"),
        ({"messages": []}, "messages must be a list of at least one message"),
        ({"messages": 3, "system": "a"}, "messages must be a list of at least one message"),
        ({"messages": "hello"}, "it is no JSON: "),
        ({"messages": ["hello"]}, "messages[0] must be an object with a role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0] is of",
        ),
        ({**CHAT, "tools": {}}, "tools must be a list"),
        ({**CHAT, "chat_template_kwargs": [1]}, "chat_template_kwargs must be an object"),
        ({"prompt": ""}, "the prompt has no tokens"),
        ({"prompt": []}, "the prompt has no tokens"),
        ({"prompt": [["a"], []]}, "token ids must be integers"),
        ({"prompt": [1, 2**31]}, "token ids must be integers of 32 bits"),
        ({"prompt": [1, "a"]}, "token ids must be integers of 32 bits"),
        ({"prompt": 5}, "the request has neither messages nor a prompt as text"),
        ({**CHAT, "cache_salt": ""}, "cache_salt must be a non-empty string"),
        ({**CHAT, "cache_salt": 5}, "cache_salt must be a non-empty string"),
        ({**CHAT, "timestamp": "soon"}, "its time is neither a number nor a date"),
        ('{"prompt": "\\ud800"}', "it is no JSON: "),
        ('{"prompt": "a"', "it is no JSON: "),
        ('{"a":' * 100_000, "it is nested too deeply"),
    ],
)
def test_a_malformed_line(tmp_path: Path, tiny_reader: PromptReader, line: Any, why: str) -> None:
    trace = read(tmp_path / "log.jsonl", CHAT, line, COMPLETION, reader=tiny_reader)
    faults = whys(trace)
    assert {number for number, _ in faults} == {2}
    assert faults[0][1].startswith(why)
    assert [request.line for request in trace.requests] == [1, 3]


def test_text_needs_a_tokenizer(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", CHAT)
    with pytest.raises(ConfigError, match=r"log\.jsonl has text: name the model whose tokenizer"):
        read_traces([path])


def test_a_line_is_one_fault_however_many_requests_it_has(tmp_path: Path, tiny_reader: PromptReader) -> None:
    trace = read(tmp_path / "log.jsonl", CHAT, {"prompt": ["a", 5, 6]}, reader=tiny_reader)
    assert whys(trace) == [(2, "the request has neither messages nor a prompt as text")]
    assert len(trace.requests) == 2


def test_many_requests_stay_in_order(
    tmp_path: Path, tiny_reader: PromptReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headstart.lab.traces.tokenising._BATCH", 40)
    texts = [f"number {number}" for number in range(100)]
    lines = [
        {"prompt": text} if number % 3 else {"prompt": [number + 1]} for number, text in enumerate(texts)
    ]
    trace = read(tmp_path / "log.jsonl", *lines, reader=tiny_reader)
    assert [request.line for request in trace.requests] == list(range(1, 101))
    told = [tokens(request) for request in trace.requests]
    assert [tiny_reader.text(ids) for ids in told[1::3]] == texts[1::3]
    assert told[::3] == [[number + 1] for number in range(0, 100, 3)]


def test_another_tokenizer_than_the_servers_is_noticed(tmp_path: Path, tiny_reader: PromptReader) -> None:
    num_tokens = len(tiny_reader.tokenizer.encode(PROMPT))
    right, wrong = ({**CHAT, "usage": {"prompt_tokens": count}} for count in (num_tokens, num_tokens * 2))
    assert read(tmp_path / "log.jsonl", right, reader=tiny_reader).notes == []
    [note] = read(tmp_path / "log.jsonl", wrong, reader=tiny_reader).notes
    assert note.startswith(f"the server counted {num_tokens * 2} prompt tokens where this tokenizer finds")
