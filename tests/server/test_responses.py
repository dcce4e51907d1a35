"""`/v1/responses`, whole and streamed, over the fake engine."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from headstart.server.choice import CallDelta, Piece
from headstart.server.conversation import Answer
from tests.server.events import stream

URL = "/v1/responses"
CHAT = "/v1/chat/completions"
ANSWER = "fine, thanks"
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "name": "weather", "description": "Tells it.", "parameters": WEATHER}


def ask(client: TestClient, given: Any = "hi", **fields: Any) -> dict[str, Any]:
    response = client.post(URL, json={"model": "fake/model", "input": given, **fields})
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    Response.model_validate(reply, strict=True)
    return reply


def events(client: TestClient, given: Any = "hi", **fields: Any) -> list[dict[str, Any]]:
    told = stream(client, URL, {"input": given, **fields})
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    for event in told:
        TypeAdapter(ResponseStreamEvent).validate_python(event)
    return told


def test_whole_reply_has_openais_shape(client: TestClient) -> None:
    reply = ask(client, metadata={"a": "b"}, user="me", store=True, truncation="auto", max_output_tokens=99)
    assert reply.pop("id").startswith("resp_")
    assert reply.pop("completed_at") >= reply.pop("created_at")
    (message,) = reply.pop("output")
    assert message.pop("id").startswith("msg_")
    text = {"type": "output_text", "text": ANSWER, "annotations": [], "logprobs": []}
    assert message == {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
    prompt = len("[user]hi[assistant]")
    assert reply == {
        "object": "response", "status": "completed", "model": "fake/model", "error": None,
        "incomplete_details": None, "instructions": None, "max_output_tokens": 99, "metadata": {"a": "b"},
        "parallel_tool_calls": True, "previous_response_id": None, "service_tier": "default", "store": False,
        "background": False, "temperature": 1.0, "top_p": 1.0, "top_logprobs": 0, "tools": [],
        "text": {"format": {"type": "text"}}, "tool_choice": "auto", "truncation": "disabled", "user": "me",
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": prompt},
            "output_tokens": len(ANSWER) + 1,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + len(ANSWER) + 1,
        },
    }  # fmt: skip


def test_stream_has_openais_order_and_tells_the_same(client: TestClient) -> None:
    told = events(client, max_output_tokens=50)
    deltas = [event for event in told if event["type"] == "response.output_text.delta"]
    assert [event["type"] for event in told if event not in deltas] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event["delta"] for event in deltas) == ANSWER
    begun, last = told[0]["response"], told[-1]["response"]
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    items = [event["item"] for event in told if "item" in event]
    assert items[0] == {**items[1], "status": "in_progress", "content": []}
    assert last["output"] == [items[1]]
    assert {event["item_id"] for event in told if "item_id" in event} == {items[1]["id"]}
    whole = ask(client, max_output_tokens=50)
    for reply in (last, whole):
        for name in ("id", "created_at", "completed_at"):
            assert reply.pop(name)
        del reply["output"][0]["id"], reply["usage"]["input_tokens_details"]
    assert last == whole


@pytest.mark.parametrize("streamed", [False, True])
def test_a_limit_leaves_it_incomplete(client: TestClient, streamed: bool) -> None:
    if streamed:
        last = events(client, max_output_tokens=4)[-1]
        assert last["type"] == "response.incomplete"
        reply = last["response"]
    else:
        reply = ask(client, max_output_tokens=4)
    assert reply["status"] == reply["output"][0]["status"] == "incomplete"
    assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
    assert reply["completed_at"] is None
    assert reply["output"][0]["content"][0]["text"] == ANSWER[:4]


def test_a_limit_beyond_the_context_is_cut(client: TestClient, engine: Any) -> None:
    ask(client, max_output_tokens=5000)
    prompt, params, _ = engine.submitted[-1]
    assert params.max_tokens == engine.info.max_model_len - len(prompt)
    ask(client)
    assert engine.submitted[-1][1].max_tokens is None


def test_nothing_said_is_a_message_all_the_same(client: TestClient, engine: Any) -> None:
    engine.answer = ""
    assert ask(client)["output"][0]["content"][0]["text"] == ""
    assert len(events(client)) == 8


def test_sampling_is_as_asked(client: TestClient, engine: Any) -> None:
    wanted = {"temperature": 0.5, "top_p": 0.25, "top_k": 3, "seed": 7, "min_p": 0.125, "stop": ["a"]}
    ask(client, **wanted)
    params = engine.submitted[-1][1]
    assert {name: getattr(params, name) for name in wanted} == wanted | {"stop": ("a",)}


@pytest.mark.parametrize("wanted", [{"top_logprobs": 2}, {"include": ["message.output_text.logprobs"]}])
def test_logprobs_of_the_text(client: TestClient, wanted: dict[str, Any]) -> None:
    reply = ask(client, **wanted)
    told = reply["output"][0]["content"][0]["logprobs"]
    assert "".join(token["token"] for token in told) == ANSWER
    assert {len(token["top_logprobs"]) for token in told} == {wanted.get("top_logprobs", 0)}
    streamed = events(client, **wanted)
    deltas = [token for event in streamed if "delta" in event for token in event["logprobs"]]
    assert deltas == told == streamed[-1]["response"]["output"][0]["content"][0]["logprobs"]


@pytest.mark.parametrize(
    ("wanted", "chat"),
    [
        ({"input": "hi"}, [{"role": "user", "content": "hi"}]),
        (
            {"instructions": "Be brief.", "input": "hi"},
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        ),
        (
            {"input": [{"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
                       {"type": "message", "role": "user", "content": "hi"}]},
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"},
                                                    {"type": "input_text", "text": "b"}]}]},
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        ),
    ],
)  # fmt: skip
def test_the_prompt_is_that_of_the_same_chat(
    client: TestClient, engine: Any, wanted: dict[str, Any], chat: list[Any]
) -> None:
    assert client.post(CHAT, json={"messages": chat}).status_code == 200
    usage = ask(client, wanted.pop("input"), **wanted)["usage"]
    assert engine.submitted[-1][0] == engine.submitted[-2][0]
    length = usage["input_tokens"]
    assert usage["input_tokens_details"] == {"cached_tokens": length - 1, "cache_write_tokens": 1}


def test_an_answer_may_be_sent_back(client: TestClient, engine: Any) -> None:
    first = {"role": "user", "content": "hi"}
    reply = ask(client, [first])
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    ask(client, [first, reasoning, *reply["output"], {"role": "user", "content": "and?"}])
    said = engine.tokenizer.decode(engine.submitted[-1][0])
    assert said == f"[user]hi[assistant]{ANSWER}[user]and?[assistant]"


def called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is a word and two calls, from now on."""

    async def pieces(self: Answer) -> AsyncGenerator[Piece, None]:
        async for _ in self.generation.pieces():
            pass
        yield Piece(0, "Well:", None, calls=(CallDelta(0, '{"city": ', id="call_a", name="weather"),))
        yield Piece(0, "", None, calls=(CallDelta(0, '"Oslo"}'),))
        yield Piece(0, "", "tool_calls", calls=(CallDelta(1, "{}", id="call_b", name="weather"),))

    monkeypatch.setattr(Answer, "pieces", pieces)


def test_calls_are_items(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    called(monkeypatch)
    reply = ask(client)
    message, *calls = reply["output"]
    assert message["content"][0]["text"] == "Well:"
    assert [call.pop("id")[:3] for call in calls] == ["fc_", "fc_"]
    assert calls == [
        {
            "type": "function_call",
            "status": "completed",
            "call_id": name,
            "name": "weather",
            "arguments": given,
        }
        for name, given in (("call_a", '{"city": "Oslo"}'), ("call_b", "{}"))
    ]
    told = events(client)
    deltas = [event["delta"] for event in told if event["type"] == "response.function_call_arguments.delta"]
    assert deltas == ['{"city": ', '"Oslo"}', "{}"]
    done = [event["arguments"] for event in told if event["type"] == "response.function_call_arguments.done"]
    assert done == ['{"city": "Oslo"}', "{}"]
    assert [event["output_index"] for event in told if event["type"] == "response.output_item.done"] == [
        0,
        1,
        2,
    ]
    assert [item["type"] for item in told[-1]["response"]["output"]] == [
        "message", "function_call", "function_call",
    ]  # fmt: skip


def test_a_failure_is_an_error_and_a_failed_response(client: TestClient, engine: Any) -> None:
    engine.fail_after, engine.failure = 4, "the sampler broke"
    error, last = events(client)[-2:]
    assert (error["type"], error["message"], error["code"]) == ("error", "the sampler broke", "engine_error")
    assert last["type"] == "response.failed"
    reply = last["response"]
    assert reply["status"] == "failed"
    assert reply["error"] == {"code": "server_error", "message": "the sampler broke"}
    assert reply["output"][0]["status"] == "incomplete"
    assert reply["output"][0]["content"][0]["text"] == ANSWER[:4]


USER = {"role": "user", "content": "hi"}
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", "a string or a list of 1 to"),
    ({"input": []}, "input", "a string or a list of 1 to"),
    ({"input": [1]}, "input", "a string or a list of 1 to"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "user, assistant, system, developer"),
    ({"input": [USER, {"role": "user"}]}, "input[1].content", "got null"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
     "input[0].content[0]", "the model reads nothing else"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", "nothing is stored here"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type", "got 'computer_call'"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id", "a string"),
    ({"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": {}}]},
     "input[0].arguments", "a string"),
    ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "input[0].output", "got null"),
    ({"input": "\ud800"}, "input", "half a surrogate pair"),
    ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
    ({"temperature": -1}, "temperature", "between 0 and 100"),
    ({"top_logprobs": 21}, "top_logprobs", "between 0 and 20"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "got 'web_search'"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "1 to 128 letters"),
    ({"tool_choice": "maybe"}, "tool_choice", "got 'maybe'"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice", "none, auto, required"),
    ({"text": {"format": {"type": "xml"}}}, "text.format", "json_schema"),
    ({"text": 1}, "text", "an object"),
    ({"metadata": {"a": 1}}, "metadata", "at most 16 strings"),
    ({"metadata": {"a": "\ud800"}}, "metadata", "valid Unicode"),
    ({"user": "\ud800"}, "user", "valid Unicode"),
    ({"tools": [{"type": "function", "name": "f", "description": "\ud800"}]}, "tools", "valid Unicode"),
    ({"truncation": "middle"}, "truncation", "auto or disabled"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole conversation as input"),
    ({"conversation": "conv_1"}, "conversation", "send the whole conversation as input"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "no templates are stored here"),
    ({"background": True}, "background", "wait or stream"),
    ({"context_management": [{"type": "compaction"}]}, "context_management", "not supported yet"),
    ({"input": "x" * 2000}, "input", "max_model_len is 1000"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "words"), BAD, ids=lambda value: str(value)[:30])
def test_bad_input(http: TestClient, fields: dict[str, Any], param: str, words: str) -> None:
    for streamed in (False, True):
        body = json.dumps({"input": "hi", "stream": streamed, **fields})
        response = http.post(URL, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["type"], error["param"]) == ("invalid_request_error", param)
        assert words in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"background": False, "previous_response_id": None, "conversation": None, "context_management": []},
        {"reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"], "service_tier": "flex"},
        {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s", "user": "u"},
        {"max_tool_calls": 3, "stream_options": {"include_obfuscation": False}, "text": {"verbosity": "low"}},
        {"parallel_tool_calls": False, "tools": [], "tool_choice": "none", "metadata": {}},
    ],
)
def test_what_changes_nothing_is_taken(client: TestClient, fields: dict[str, Any]) -> None:
    assert ask(client, **fields)["status"] == "completed"


def test_another_model_is_not_found(client: TestClient) -> None:
    response = client.post(URL, json={"model": "gpt", "input": "hi"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
