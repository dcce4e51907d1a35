from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from headstart.engine.request import Retention
from headstart.server.hints import retention

URL = "/v1/cache/warm"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
STABLE = "[system]Be brief.[user]hi["  # whoever speaks next


def warm(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post(URL, json=body)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def asked(engine: Any) -> tuple[str, Any, Any]:
    tokens, params, terms = engine.submitted[-1]
    return engine.tokenizer.decode(tokens), params, terms


def test_the_prefix_that_every_continuation_shares_is_computed_and_nothing_else(
    client: TestClient, engine: Any
) -> None:
    reply = warm(client, messages=MESSAGES, model="fake/model")
    assert reply.pop("id").startswith("warm-")
    assert isinstance(reply.pop("created"), int)
    assert reply == {
        "object": "cache.warm",
        "model": "fake/model",
        "prompt_tokens": len(STABLE),
        "cached_tokens": 0,
        "computed_tokens": len(STABLE),
        "kept_tokens": len(STABLE),
        "retained_tokens": 0,
        "retained_until": None,
    }
    prompt, params, terms = asked(engine)
    assert prompt == STABLE
    assert (params.max_tokens, params.num_choices) == (0, 1)
    assert terms.retention == Retention(600.0)
    again = warm(client, messages=MESSAGES)
    assert (again["cached_tokens"], again["computed_tokens"]) == (len(STABLE) - 1, 1)


def test_the_body_of_a_chat_does_whatever_else_it_asks_for(client: TestClient, engine: Any) -> None:
    body = {
        "messages": MESSAGES,
        "n": 3,
        "max_tokens": 50,
        "stream": True,
        "temperature": 0.7,
        "logprobs": True,
    }
    assert warm(client, **body, chat_template_kwargs={"extra": "!"})["prompt_tokens"] == len(STABLE)
    assert asked(engine)[1].max_tokens == 0


def test_a_prompt_as_text_or_ids(client: TestClient, engine: Any) -> None:
    warm(client, prompt="hello")
    assert asked(engine)[0] == "hello"
    warm(client, prompt="hello, wor")
    assert asked(engine)[0] == "hello,"  # the last word may go on
    warm(client, prompt=[7, 8, 9])
    assert engine.submitted[-1][0] == [7, 8, 9]


def test_it_acts_in_the_callers_namespace(client: TestClient, engine: Any) -> None:
    warm(client, prompt="hello", cache_salt="tom")
    assert asked(engine)[2].salt == "tom"


def test_how_long_it_is_kept(client: TestClient, engine: Any) -> None:
    engine.num_retained_tokens = 16
    before = int(time.time())
    reply = warm(client, messages=MESSAGES, ttl_seconds=90, prompt_cache_retention="24h")
    assert before + 90 <= reply["retained_until"] <= time.time() + 90
    assert reply["retained_tokens"] == 16
    assert asked(engine)[2].retention == Retention(90.0)
    warm(client, messages=MESSAGES, prompt_cache_retention="24h", prompt_cache_key="a")
    assert asked(engine)[2].retention == retention(86_400.0, key="a")


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"prefix_index": "hash"}, 16),
        ({"prefix_index": "hash", "block_size": 4}, 24),
        ({"enable_prefix_caching": False}, 0),
    ],
)
def test_what_can_be_found_depends_on_the_index(
    client: TestClient, engine: Any, changes: dict[str, Any], kept: int
) -> None:
    engine.info = msgspec.structs.replace(engine.info, **changes)
    assert len(STABLE) == 26
    assert warm(client, messages=MESSAGES)["kept_tokens"] == kept


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "messages", "one of them"),
        ({"messages": []}, "messages", "one of them"),
        ({"prompt": ""}, "messages", "one of them"),
        ({"messages": MESSAGES, "prompt": "hi"}, "prompt", "one of them"),
        ({"prompt": ["a", "b"]}, "prompt", "a text or a list of token ids"),
        ({"prompt": "hi", "ttl_seconds": 0}, "ttl_seconds", "at most 86400"),
        ({"prompt": "hi", "ttl_seconds": 86401}, "ttl_seconds", "at most 86400"),
        ({"prompt": "hi", "ttl_seconds": "1h"}, "ttl_seconds", "at most 86400"),
        ({"prompt": "hi", "skip_writing_prefix_cache": True}, "skip_writing_prefix_cache", "leave it out"),
        ({"prompt": "hi" * 600}, "prompt", "1000"),
        ({"messages": [{"role": "user", "content": "hi" * 600}]}, "messages", "1000"),
        ({"prompt": [7, 999]}, "prompt", "vocabulary"),
    ],
)
def test_what_cannot_be_warmed_is_refused(
    client: TestClient, engine: Any, body: dict[str, Any], param: str, words: str
) -> None:
    response = client.post(URL, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
    assert not engine.running


def test_another_model_is_not_warmed_here(client: TestClient) -> None:
    assert client.post(URL, json={"prompt": "hi", "model": "gpt"}).status_code == 404


def test_its_request_can_be_explained(client: TestClient) -> None:
    name = warm(client, prompt="hello")["id"]
    assert client.post("/v1/cache/explain", json={"request_id": name}).json()["status"] == "pending"


def test_a_full_server_refuses_it_like_all_others(client: TestClient, engine: Any) -> None:
    engine.full = True
    response = client.post(URL, json={"prompt": "hello"})
    assert response.status_code == 429
    assert response.headers["retry-after"]
    assert engine.asked_for == [1]
    assert engine.submitted == []
