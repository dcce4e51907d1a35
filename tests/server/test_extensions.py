"""vLLM's extensions, on both routes that generate."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT_PROMPT = "[user]hi[assistant]"
ROUTES = [
    pytest.param(CHAT, {"messages": MESSAGES}, id="chat"),
    pytest.param(TEXT, {"prompt": "hello"}, id="text"),
]
both = pytest.mark.parametrize(("path", "body"), ROUTES)


def whole(client: TestClient, path: str, body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    response = client.post(path, json=body | fields)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def chunks(client: TestClient, path: str, body: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    response = client.post(path, json=body | {"stream": True} | fields)
    assert response.status_code == 200, response.text
    *events, done, _ = response.text.split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def error(
    client: TestClient, path: str, body: dict[str, Any], status: int = 400, **fields: Any
) -> dict[str, Any]:
    response = client.post(path, json=body | fields)
    assert response.status_code == status, response.text
    told: dict[str, Any] = response.json()["error"]
    return told


def prompt_of(path: str) -> str:
    return CHAT_PROMPT if path == CHAT else "hello"


@both
def test_the_last_tokens_of_a_prompt_are_kept(client: TestClient, engine: Any, path: str, body: Any) -> None:
    reply = whole(client, path, body, truncate_prompt_tokens=3, max_tokens=2)
    assert engine.submitted[-1][0] == engine.tokenizer.encode(prompt_of(path)[-3:])
    assert reply["usage"]["prompt_tokens"] == 3
    whole(client, path, body, truncate_prompt_tokens=999)
    assert engine.submitted[-1][0] == engine.tokenizer.encode(prompt_of(path))


def test_as_many_tokens_as_fit_are_kept(client: TestClient, engine: Any) -> None:
    text = "0123456789" * 200
    assert error(client, TEXT, {"prompt": text})["code"] == "context_length_exceeded"
    for fields, room in (({"max_tokens": 10}, 990), ({}, 984)):  # 16 are the default of max_tokens
        reply = whole(client, TEXT, {"prompt": text}, truncate_prompt_tokens=-1, **fields)
        assert reply["usage"]["prompt_tokens"] == room
        assert engine.submitted[-1][0] == engine.tokenizer.encode(text[-room:])
    chat = {"messages": [{"role": "user", "content": text}]}
    assert whole(client, CHAT, chat, truncate_prompt_tokens=-1)["usage"]["prompt_tokens"] == 999


def test_of_several_prompts_each_is_cut(client: TestClient, engine: Any) -> None:
    body = {"prompt": ["hello", "hi", "goodbye"], "truncate_prompt_tokens": 4, "echo": True, "max_tokens": 1}
    reply = whole(client, TEXT, body)
    assert [choice["text"] for choice in reply["choices"]] == ["ellof", "hif", "dbyef"]
    assert reply["usage"]["prompt_tokens"] == 10
    ids = engine.tokenizer.encode("hello")
    assert whole(client, TEXT, body | {"prompt": ids})["choices"][0]["text"] == "ellof"


def test_what_is_told_of_a_cut_prompt_is_of_what_is_left(client: TestClient) -> None:
    fields = {"truncate_prompt_tokens": 2, "echo": True, "logprobs": 0, "prompt_logprobs": 0, "max_tokens": 1}
    choice = whole(client, TEXT, {"prompt": "hello"}, **fields)["choices"][0]
    assert choice["text"] == "lof"
    assert choice["logprobs"]["tokens"] == ["l", "o", "f"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert len(choice["prompt_logprobs"]) == 2
    only = whole(client, TEXT, {"prompt": "hello"}, truncate_prompt_tokens=2, echo=True, max_tokens=0)
    assert only["choices"][0]["text"] == "lo"


@both
@pytest.mark.parametrize("value", [0, -2, 1.5, "3", True, 1001])
def test_how_much_is_kept_must_make_sense(client: TestClient, path: str, body: Any, value: Any) -> None:
    assert error(client, path, body, truncate_prompt_tokens=value)["param"] == "truncate_prompt_tokens"


@both
@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_are_told(client: TestClient, engine: Any, path: str, body: Any, stream: bool) -> None:
    encode, [end] = engine.tokenizer.encode, engine.tokenizer.eos_token_ids
    answer = [*encode("fine, thanks"), end]
    fields = {"return_token_ids": True, "max_tokens": 20}
    if not stream:
        reply = whole(client, path, body, **fields)
        choice = reply["choices"][0]
        assert choice["token_ids"] == answer
        told = reply if path == CHAT else choice
        assert told["prompt_token_ids"] == encode(prompt_of(path))
        assert len(choice["token_ids"]) == reply["usage"]["completion_tokens"]
        return
    events = chunks(client, path, body, **fields)
    assert [token for event in events for token in event["choices"][0]["token_ids"]] == answer
    holders = events if path == CHAT else [event["choices"][0] for event in events]
    assert holders[0]["prompt_token_ids"] == encode(prompt_of(path))
    assert not any("prompt_token_ids" in holder for holder in holders[1:])


@both
def test_token_ids_are_told_only_when_asked_for(client: TestClient, path: str, body: Any) -> None:
    assert "token_ids" not in json.dumps([whole(client, path, body), *chunks(client, path, body)])


def test_each_choices_first_chunk_has_its_prompt(client: TestClient, engine: Any) -> None:
    events = chunks(client, TEXT, {"prompt": ["ab", "c"]}, n=2, return_token_ids=True, max_tokens=3)
    told = {}
    for event in events:
        [choice] = event["choices"]
        if "prompt_token_ids" in choice:
            assert choice["index"] not in told
            told[choice["index"]] = choice["prompt_token_ids"]
    ab, c = engine.tokenizer.encode("ab"), engine.tokenizer.encode("c")
    assert told == {0: ab, 1: ab, 2: c, 3: c}


def test_ids_stand_for_tokens_in_logprobs(client: TestClient, engine: Any) -> None:
    [first, *_] = engine.tokenizer.encode("fine")
    fields = {"return_tokens_as_token_ids": True, "max_tokens": 1}
    told = whole(client, TEXT, {"prompt": "h"}, logprobs=1, **fields)["choices"][0]["logprobs"]
    assert told["tokens"] == [f"token_id:{first}"]
    assert set(told["top_logprobs"][0]) == {f"token_id:{first}", "token_id:33"}
    assert told["text_offset"] == [0]
    chat = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 1}
    [token] = whole(client, CHAT, chat, **fields)["choices"][0]["logprobs"]["content"]
    assert token["token"] == f"token_id:{first}"
    assert token["bytes"] == [ord("f")]
    assert token["top_logprobs"][0]["token"] == "token_id:33"


def test_echoed_tokens_have_ids_too(client: TestClient, engine: Any) -> None:
    fields = {"return_tokens_as_token_ids": True, "max_tokens": 1, "echo": True, "logprobs": 0}
    told = whole(client, TEXT, {"prompt": "h<end>i"}, **fields)["choices"][0]["logprobs"]
    tokens = engine.tokenizer.encode("h<end>if")
    assert told["tokens"] == [f"token_id:{token}" for token in tokens]
    assert told["text_offset"] == [0, 1, 6, 7]


@both
def test_the_usage_so_far_is_in_every_chunk(client: TestClient, path: str, body: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = chunks(client, path, body, stream_options=options, max_tokens=4)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 4)
    for event in events:
        usage = event["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert events[-1]["choices"] == []
    alone = chunks(client, path, body, stream_options={"continuous_usage_stats": True}, max_tokens=4)
    assert not any(event.get("usage") for event in alone)


@both
def test_markers_are_text_when_they_are_not_skipped(
    client: TestClient, engine: Any, path: str, body: Any
) -> None:
    engine.answer = "a<end>b"
    texts = []
    for skip in (None, True, False):
        fields = {"skip_special_tokens": skip, "ignore_eos": True, "max_tokens": 3}
        choice = whole(client, path, body, **fields, spaces_between_special_tokens=False)["choices"][0]
        texts.append(choice["message"]["content"] if path == CHAT else choice["text"])
    assert texts == ["ab", "ab", "a<end>b"]


def test_offsets_count_markers_that_are_shown(client: TestClient, engine: Any) -> None:
    engine.answer = "a<end>b"
    fields = {"skip_special_tokens": False, "ignore_eos": True, "max_tokens": 3, "logprobs": 0}
    assert whole(client, TEXT, {"prompt": "h"}, **fields)["choices"][0]["logprobs"]["text_offset"] == [
        0,
        1,
        6,
    ]


@both
def test_a_request_has_the_id_it_brings(client: TestClient, path: str, body: Any) -> None:
    prefix = "chatcmpl" if path == CHAT else "cmpl"
    assert whole(client, path, body, request_id="my-1")["id"] == f"{prefix}-my-1"
    assert {event["id"] for event in chunks(client, path, body, request_id="my-1")} == {f"{prefix}-my-1"}


@both
@pytest.mark.parametrize("value", ["", "a b", "x" * 129, "a\n", "é", 3])
def test_an_id_must_be_plain(client: TestClient, path: str, body: Any, value: Any) -> None:
    assert error(client, path, body, request_id=value)["param"] == "request_id"


@both
def test_an_id_in_use_is_refused(client: TestClient, engine: Any, path: str, body: Any) -> None:
    engine.running.add("chatcmpl-my-1-0" if path == CHAT else "cmpl-my-1-0")
    assert error(client, path, body, 409, request_id="my-1")["code"] == "request_id_in_use"
    assert whole(client, path, body, request_id="my-2")
