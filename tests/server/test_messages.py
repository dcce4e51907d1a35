"""`/v1/messages`, whole and streamed, over the fake engine."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from headstart.engine.request import Retention
from headstart.errors import EngineDeadError
from headstart.server.choice import CallDelta, Piece
from headstart.server.conversation import Answer
from tests.server.events import stream

URL = "/v1/messages"
CHAT = "/v1/chat/completions"
ANSWER = "fine, thanks"
HI = [{"role": "user", "content": "hi"}]
PROMPT = len("[user]hi[assistant]")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def ask(client: TestClient, messages: Any = HI, max_tokens: int = 50, **fields: Any) -> dict[str, Any]:
    body = {"model": "fake/model", "messages": messages, "max_tokens": max_tokens, **fields}
    response = client.post(URL, json=body)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    Message.model_validate(reply, strict=True)
    return reply


def events(
    client: TestClient, messages: Any = HI, max_tokens: int = 50, **fields: Any
) -> list[dict[str, Any]]:
    told = stream(client, URL, {"messages": messages, "max_tokens": max_tokens, **fields})
    for event in told:
        if event["type"] not in ("ping", "error"):
            TypeAdapter(RawMessageStreamEvent).validate_python(event)
    return told


def usage(plain: int, created: int, read: int, output: int, hour: int = 0) -> dict[str, Any]:
    return {
        "input_tokens": plain,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": created - hour,
            "ephemeral_1h_input_tokens": hour,
        },
        "output_tokens": output,
    }


def test_whole_reply_has_anthropics_shape(client: TestClient) -> None:
    reply = ask(client, metadata={"user_id": "me"})
    assert reply.pop("id").startswith("msg_")
    assert reply == {
        "type": "message",
        "role": "assistant",
        "model": "fake/model",
        "content": [text(ANSWER)],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": usage(PROMPT, 0, 0, len(ANSWER) + 1),
    }


def test_stream_has_anthropics_order_and_tells_the_same(client: TestClient) -> None:
    told = events(client)
    deltas = [event["delta"] for event in told if event["type"] == "content_block_delta"]
    assert [event["type"] for event in told if event["type"] != "content_block_delta"] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert {delta["type"] for delta in deltas} == {"text_delta"}
    assert "".join(delta["text"] for delta in deltas) == ANSWER
    assert told[2]["content_block"] == text("")
    assert {event["index"] for event in told if "index" in event} == {0}
    begun, ended = told[0]["message"], told[-2]
    assert (begun["content"], begun["stop_reason"]) == ([], None)
    assert ended["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert begun["usage"] == usage(PROMPT, 0, 0, 1)
    assert ended["usage"] == usage(PROMPT, 0, 0, len(ANSWER) + 1)
    warm = events(client)
    assert warm[0]["message"]["usage"] == usage(1, 0, PROMPT - 1, 1)
    assert warm[-2]["usage"] == ask(client)["usage"] == usage(1, 0, PROMPT - 1, len(ANSWER) + 1)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("fields", "reason", "stop"),
    [
        ({"max_tokens": 4}, "max_tokens", None),
        ({"stop_sequences": ["never", "tha"]}, "stop_sequence", "tha"),
        ({"stop_sequences": ["never"]}, "end_turn", None),
    ],
)
def test_why_it_ended(
    client: TestClient, fields: dict[str, Any], reason: str, stop: str | None, streamed: bool
) -> None:
    told = events(client, **fields)[-2]["delta"] if streamed else ask(client, **fields)
    assert (told["stop_reason"], told["stop_sequence"]) == (reason, stop)


def test_a_limit_beyond_the_context_is_cut_and_told(client: TestClient, engine: Any) -> None:
    engine.answer = "x" * 2000
    room = engine.info.max_model_len - PROMPT
    assert ask(client, max_tokens=5000)["stop_reason"] == "model_context_window_exceeded"
    assert engine.submitted[-1][1].max_tokens == room
    assert ask(client, max_tokens=room)["stop_reason"] == "max_tokens"


def test_nothing_said_is_no_content(client: TestClient, engine: Any) -> None:
    engine.answer = ""
    assert ask(client)["content"] == []
    assert [event["type"] for event in events(client)] == [
        "message_start", "ping", "message_delta", "message_stop",
    ]  # fmt: skip


def test_sampling_is_as_asked(client: TestClient, engine: Any) -> None:
    ask(client, temperature=0.5, top_p=0.25, top_k=3, stop_sequences=["a", "b"])
    params = engine.submitted[-1][1]
    assert (params.temperature, params.top_p, params.top_k, params.stop) == (0.5, 0.25, 3, ("a", "b"))
    assert params.max_tokens == 50


CALL = {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
SAME: list[tuple[dict[str, Any], list[Any]]] = [
    ({"messages": HI}, HI),
    ({"system": "Be brief.", "messages": HI}, [{"role": "system", "content": "Be brief."}, *HI]),
    (
        {"system": [text("Be brief."), text("Be kind.", **MARK)], "messages": HI},
        [{"role": "system", "content": [text("Be brief."), text("Be kind.")]}, *HI],
    ),
    (
        {"messages": [{"role": "user", "content": [text("a", **HOUR), text("b")]}]},
        [{"role": "user", "content": [text("a"), text("b")]}],
    ),
    (
        {"messages": [*HI, {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"}, text("I'll look."),
            {"type": "tool_use", "id": "call_a", "name": "weather", "input": {"city": "Oslo"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "call_a", "content": [text("rain", **MARK)], **MARK},
                text("And now?")]}]},
        [*HI, {"role": "assistant", "content": [text("I'll look.")], "tool_calls": [CALL]},
         {"role": "tool", "tool_call_id": "call_a", "content": [text("rain")]},
         {"role": "user", "content": [text("And now?")]}],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "chat"), SAME)
def test_the_prompt_is_that_of_the_same_chat(
    client: TestClient, engine: Any, wanted: dict[str, Any], chat: list[Any]
) -> None:
    assert client.post(CHAT, json={"messages": chat}).status_code == 200
    bill = ask(client, **wanted)["usage"]
    assert engine.submitted[-1][0] == engine.submitted[-2][0]
    assert (bill["input_tokens"], bill["cache_read_input_tokens"]) == (1, len(engine.submitted[-1][0]) - 1)
    counted = client.post(f"{URL}/count_tokens", json=wanted)
    assert counted.json() == {"input_tokens": len(engine.submitted[-1][0])}


def test_three_apis_share_one_cache(client: TestClient, engine: Any) -> None:
    hits = [ask(client)["usage"]["cache_read_input_tokens"]]
    response = client.post("/v1/responses", json={"input": HI}).json()
    hits.append(response["usage"]["input_tokens_details"]["cached_tokens"])
    chat = client.post(CHAT, json={"messages": HI}).json()
    hits.append(chat["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert hits == [0, PROMPT - 1, PROMPT - 1]


MARKED: list[tuple[dict[str, Any], int, int]] = [
    ({"system": [text("Be brief.", **MARK)], "messages": HI}, len("[system]Be brief.[user]"), 0),
    ({"system": [text("Be", **MARK), text("brief.")], "messages": HI}, len("[system]Be\n"), 0),
    ({"system": [text("Be brief.", **HOUR)], "messages": HI}, 23, 23),
    ({"system": [text("Be brief.", **HOUR)], "messages": [{"role": "user", "content": [text("hi", **MARK)]}]},
     len("[system]Be brief.[user]hi[assistant]"), 23),
    ({"messages": HI, **MARK}, PROMPT, 0),
    ({"messages": [{"role": "user", "content": [text("hi", **MARK), text("you")]}]}, len("[user]hi\n"), 0),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "created", "hour"), MARKED)
def test_what_is_created_lies_before_the_last_marker(
    client: TestClient, wanted: dict[str, Any], created: int, hour: int
) -> None:
    cold, warm = ask(client, **wanted)["usage"], ask(client, **wanted)["usage"]
    whole = cold["input_tokens"] + created
    assert cold == usage(whole - created, created, 0, len(ANSWER) + 1, hour)
    assert warm == usage(1, 0, whole - 1, len(ANSWER) + 1)
    streamed = events(client, **wanted, cache_salt="other")
    assert streamed[-2]["usage"] == cold
    assert streamed[0]["message"]["usage"] == cold | {"output_tokens": 1}


def test_markers_move_without_moving_a_token(client: TestClient, engine: Any) -> None:
    system, said = ("Be brief.", "Be kind."), ("hi", "you")
    prompts = set()
    for marked in range(5):
        parts = [text(part, **(MARK if marked == place else {})) for place, part in enumerate(system + said)]
        messages = [{"role": "user", "content": parts[2:]}]
        bill = ask(client, messages, system=parts[:2])["usage"]
        assert bill["cache_read_input_tokens"] == (len(engine.submitted[-1][0]) - 1 if marked else 0)
        prompts.add(tuple(engine.submitted[-1][0]))
    assert len(prompts) == 1


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, None),
        ({"system": [text("a", **MARK)]}, 300.0),
        (
            {"system": [text("a", **MARK)], "messages": [{"role": "user", "content": [text("a", **HOUR)]}]},
            3600.0,
        ),
        ({"tools": [{"name": "f", "input_schema": SCHEMA, **HOUR}], "tool_choice": {"type": "none"}}, 3600.0),
        ({"system": [text("a", **HOUR)], "skip_writing_prefix_cache": True}, None),
        ({"system": [text("a", **MARK)], "prompt_cache_options": {"ttl": "30m"}}, 1800.0),
    ],
)
def test_markers_are_hints_how_long_to_keep(
    client: TestClient, engine: Any, fields: dict[str, Any], seconds: float | None
) -> None:
    bill = ask(client, **fields)["usage"]
    assert engine.submitted[-1][2].retention == (None if seconds is None else Retention(seconds))
    if fields.get("skip_writing_prefix_cache"):
        assert bill["cache_creation_input_tokens"] == 0


def called(monkeypatch: pytest.MonkeyPatch, *last: Piece) -> None:
    async def pieces(self: Answer) -> AsyncGenerator[Piece, None]:
        async for _ in self.generation.pieces():
            pass
        yield Piece(0, "Well:", None, calls=(CallDelta(0, '{"city": ', id="call_a", name="weather"),))
        for piece in last:
            yield piece

    monkeypatch.setattr(Answer, "pieces", pieces)


def test_calls_are_blocks(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    called(monkeypatch, Piece(0, "", "tool_calls", calls=(CallDelta(0, '"Oslo"}'),)))
    reply = ask(client)
    use = {"type": "tool_use", "id": "call_a", "name": "weather", "input": {"city": "Oslo"}}
    assert reply["content"] == [text("Well:"), use]
    assert reply["stop_reason"] == "tool_use"
    told = [event for event in events(client) if event.get("index") == 1]
    assert told[0]["content_block"] == {**use, "input": {}}
    assert [event["delta"] for event in told[1:-1]] == [
        {"type": "input_json_delta", "partial_json": part} for part in ('{"city": ', '"Oslo"}')
    ]
    assert told[-1]["type"] == "content_block_stop"


@pytest.mark.parametrize(("rest", "given"), [('"Os', {"city": "Os"}), ("", {}), ("]", {})])
def test_of_a_call_that_a_limit_cut_off_there_is_what_is_whole(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, rest: str, given: dict[str, Any]
) -> None:
    called(monkeypatch, Piece(0, "", "length", calls=(CallDelta(0, rest),)))
    assert ask(client)["content"][1]["input"] == given


@pytest.mark.parametrize(
    ("failure", "kind"),
    [("the sampler broke", "api_error"), (EngineDeadError("the engine is gone"), "overloaded_error")],
)
def test_a_failure_in_a_stream_is_an_event(client: TestClient, engine: Any, failure: Any, kind: str) -> None:
    engine.fail_after, engine.failure = 4, failure
    *_, last = events(client)
    assert last == {"type": "error", "error": {"type": kind, "message": str(failure)}}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens must be an integer of at least 1"),
    ({"max_tokens": 0}, "max_tokens must be an integer of at least 1"),
    ({"max_tokens": "9"}, "max_tokens must be an integer of at least 1"),
    ({"messages": None}, "messages must be a list"),
    ({"messages": []}, "messages must not be empty"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role must be user or assistant"),
    ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content must be a string or a list of 1"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
     "messages[0].content[0] must be text"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "the model reads nothing else"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "got {'type': 'tool_use'}"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
     "messages[0].content[0].tool_use_id must be a string"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [
        {"type": "image"}]}]}]}, "messages[0].content[0].content[0] must be text"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}, *HI]},
     "messages[0].content[0] must have an id and a name"),
    ({"messages": [*HI, {"role": "assistant", "content": [
        {"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]}, "must not end with a tool_use"),
    ({"system": 1}, "system must be a string or a list of text blocks"),
    ({"system": [{"type": "image"}]}, "system[0] must be text"),
    ({"system": "\ud800"}, "half a surrogate pair"),
    ({"temperature": -1}, "temperature must be between 0 and 100"),
    ({"top_k": 1.5}, "top_k must be"),
    ({"stop_sequences": "a"}, "stop_sequences must be a list"),
    ({"stop_sequences": [""]}, "strings of 1 to 1024 characters"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking cannot be enabled"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type must be custom"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema must be an object"),
    ({"tools": [{"input_schema": SCHEMA}]}, "tools[0].name must be 1 to 128"),
    ({"tool_choice": {"type": "any"}}, "tool_choice asks for a tool, but there are no tools"),
    ({"tool_choice": {"type": "some"}}, "tool_choice must be of type auto, any, none or tool"),
    ({"tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "tool", "name": "g"}},
     "tool_choice names 'g'"),
    ({"system": [text("a", cache_control={"type": "forever"})]}, "system[0].cache_control must be"),
    ({"system": [text("a", cache_control={"type": "ephemeral", "ttl": "2h"})]}, "a ttl of 5m or 1h"),
    ({"system": [text("a", **MARK)] * 4, **MARK}, "cache_control may be set on at most 4 blocks, got 5"),
    ({"output_config": {"format": {"type": "xml"}}}, 'output_config must be an object like {"format": '),
    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers is not supported yet"),
    ({"stream": "yes"}, "stream must be true or false"),
    ({"messages": [{"role": "user", "content": "x" * 2000}]}, "max_model_len is 1000"),
]  # fmt: skip


def error_of(response: Any, kind: str) -> str:
    """The message of an error object, which must have exactly Anthropic's form."""
    error = response.json()
    assert set(error) == {"type", "error"}
    assert set(error["error"]) == {"type", "message"}
    assert (error["type"], error["error"]["type"]) == ("error", kind)
    message: str = error["error"]["message"]
    return message


@pytest.mark.parametrize(("fields", "words"), BAD, ids=lambda value: str(value)[:40])
def test_bad_input(http: TestClient, fields: dict[str, Any], words: str) -> None:
    for streamed in (False, True):
        body = json.dumps({"messages": HI, "max_tokens": 50, "stream": streamed, **fields})
        response = http.post(URL, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400, response.text
        assert words in error_of(response, "invalid_request_error")


def test_every_refusal_is_in_anthropics_words(client: TestClient, engine: Any) -> None:
    good = {"messages": HI, "max_tokens": 5}
    assert "'gpt'" in error_of(client.post(URL, json=good | {"model": "gpt"}), "not_found_error")
    assert "POST" in error_of(client.get(URL), "invalid_request_error")
    assert "/v1/messages/batches" in error_of(client.post(f"{URL}/batches", json={}), "not_found_error")
    cut = client.post(URL, content=b"{", headers={"content-type": "application/json"})
    assert "not valid JSON" in error_of(cut, "invalid_request_error")
    assert "Content-Type" in error_of(client.post(URL, content=b"{}"), "invalid_request_error")
    huge = {"content-type": "application/json", "content-length": str(10**9)}
    assert "bytes" in error_of(client.post(URL, content=b"{}", headers=huge), "request_too_large")
    assert (
        error_of(client.post(f"{URL}/count_tokens", json={}), "invalid_request_error")
        == "messages is missing"
    )
    engine.failure, engine.fail_after = KeyError("secret"), 1
    assert "secret" not in error_of(client.post(URL, json=good), "api_error")


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "disabled"}, "service_tier": "auto", "metadata": {"user_id": "u"}},
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}, "inference_geo": "eu"},
        {"context_management": {"edits": []}, "mcp_servers": [], "container": None},
        {"tools": [], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    ],
)
def test_what_changes_nothing_is_taken(client: TestClient, fields: dict[str, Any]) -> None:
    assert ask(client, **fields)["stop_reason"] == "end_turn"
