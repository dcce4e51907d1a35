"""``/tokenize`` and ``/detokenize`` over a tokenizer of bytes; no engine is asked."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

MESSAGES = [{"role": "user", "content": "hi"}]


def tokens_of(client: TestClient, **body: Any) -> list[int]:
    response = client.post("/tokenize", json=body)
    assert response.status_code == 200, response.text
    reply = response.json()
    assert reply["count"] == len(reply["tokens"])
    assert reply["max_model_len"] == 1000
    tokens: list[int] = reply["tokens"]
    return tokens


def test_a_prompt(client: TestClient, engine: Any) -> None:
    assert tokens_of(client, prompt="héllo", model="fake/model") == engine.tokenizer.encode("héllo")
    assert tokens_of(client, prompt="") == []
    assert not engine.submitted


def test_tokens_are_spelled_when_asked_for(client: TestClient) -> None:
    body = {"prompt": "a<end>", "return_token_strs": True}
    assert client.post("/tokenize", json=body).json()["token_strs"] == ["a", "<end>"]
    assert client.post("/tokenize", json={"prompt": "a"}).json()["token_strs"] is None


@pytest.mark.parametrize(
    "fields", [{}, {"add_generation_prompt": False}, {"chat_template_kwargs": {"extra": "!"}}]
)
def test_a_conversation_is_what_a_chat_would_be(
    client: TestClient, engine: Any, fields: dict[str, Any]
) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1, **fields}
    tokens = tokens_of(client, **body)
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    assert engine.submitted[-1][0] == tokens
    assert tokens_of(client, **body, truncate_prompt_tokens=3) == tokens[-3:]


def test_text_of_tokens(client: TestClient, engine: Any) -> None:
    tokens = [*engine.tokenizer.encode("héllo"), *engine.tokenizer.eos_token_ids]
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": "héllo<end>"}
    assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/tokenize", {}, "prompt", "missing"),
        ("/tokenize", {"prompt": 3}, "prompt", "a string"),
        ("/tokenize", {"prompt": "x" * 100_000}, "prompt", "maximum context length"),
        ("/tokenize", {"prompt": "a", "model": "gpt"}, "model", "fake/model"),
        ("/tokenize", {"messages": []}, "messages", "must not be empty"),
        ("/tokenize", {"messages": [{"role": "x", "content": ""}]}, "messages[0].role", "one of system"),
        ("/tokenize", {"messages": MESSAGES, "return_token_strs": 1}, "return_token_strs", "true or false"),
        ("/detokenize", {}, "tokens", "missing"),
        ("/detokenize", {"tokens": "a"}, "tokens", "a list of token ids"),
        ("/detokenize", {"tokens": [299]}, "tokens", "no token"),
        ("/detokenize", {"tokens": [-1]}, "tokens", "no token"),
        ("/detokenize", {"tokens": [1] * 1001}, "tokens", "at most 1000"),
    ],
)
def test_what_is_wrong_is_told(
    client: TestClient, path: str, body: dict[str, Any], param: str, words: str
) -> None:
    response = client.post(path, json=body)
    assert response.status_code == (404 if param == "model" else 400)
    error = response.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
