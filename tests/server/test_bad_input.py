"""Every bad request is refused with OpenAI's error object, and the server goes on serving."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from headstart.server.app import MAX_BODY_BYTES

BAD_REQUESTS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "golden" / "bad_requests.json").read_text()
)
JSON = {"content-type": "application/json"}
GOOD = {"prompt": "hi"}


def error_of(response: Any) -> dict[str, Any]:
    """The error object, which must have exactly OpenAI's keys."""
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == ("invalid_request_error" if response.status_code < 500 else "server_error")
    return error


@pytest.mark.parametrize(
    "row", BAD_REQUESTS, ids=lambda row: f"{row['path'][4:8]}-{row['param']}-{row['code']}"
)
def test_bad_field(client: TestClient, engine: Any, row: dict[str, Any]) -> None:
    response = client.post(row["path"], json=row["body"])
    assert response.status_code == row["status"]
    error = error_of(response)
    assert (error["param"], error["code"]) == (row["param"], row["code"])
    for words in row["says"]:
        assert words in error["message"]
    assert len(error["message"]) < 400
    assert not engine.running
    assert client.post("/v1/completions", json=GOOD).status_code == 200


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b'{"prompt": "a",}', "invalid_json", "at character 15"),
        (b'{"prompt": "a', "invalid_json", "Unterminated string starting at character 11"),
        (b'{"prompt": "a"} {}', "invalid_json", "Extra data at character 16"),
        (b'{"prompt": "\xff"}', "invalid_json", "not text in UTF-8: byte 12 is wrong"),
        (b"[" * 100_000, "invalid_json", "nested too deeply"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "invalid_json", "more than 4300 digits"),
        (b"", "invalid_type", "a JSON object"),
        (b"null", "invalid_type", "a JSON object"),
        (b"[1, 2]", "invalid_type", "a JSON object"),
        (b'"text"', "invalid_type", "a JSON object"),
        (b'{"prompt": "a", "temperature": NaN}', "invalid_value", "between 0 and 100, got nan"),
        (b'{"prompt": "a", "temperature": 1e999}', "invalid_value", "between 0 and 100, got inf"),
        (b'{"prompt": "\\ud800"}', "invalid_value", "half a surrogate pair"),
        (b'{"prompt": "a", "max_tokens": 1e30}', "invalid_value", "an integer of at least 1"),
        (b'{"prompt": "a", "max_tokens": -0}', "invalid_value", "an integer of at least 1"),
    ],
)
def test_bad_body(client: TestClient, content: bytes, code: str, words: str) -> None:
    response = client.post("/v1/completions", content=content, headers=JSON)
    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == code
    assert words in error["message"]


def test_half_a_surrogate_is_the_messages_fault_in_a_chat(client: TestClient) -> None:
    body = b'{"messages": [{"role": "user", "content": "\\ud800"}]}'
    response = client.post("/v1/chat/completions", content=body, headers=JSON)
    assert response.status_code == 400
    assert error_of(response)["param"] == "messages"


def test_a_byte_order_mark_is_allowed(client: TestClient) -> None:
    body = json.dumps(GOOD).encode("utf-8-sig")
    assert client.post("/v1/completions", content=body, headers=JSON).status_code == 200


def test_of_a_key_that_comes_twice_the_last_counts(client: TestClient, engine: Any) -> None:
    assert client.post("/v1/completions", content=b'{"prompt": "a", "prompt": "b"}', headers=JSON).is_success
    assert engine.submitted[-1][0] == engine.tokenizer.encode("b")


def test_compressed_bodies_are_refused(client: TestClient) -> None:
    response = client.post(
        "/v1/completions", content=gzip.compress(b"{}"), headers=JSON | {"content-encoding": "gzip"}
    )
    assert response.status_code == 415
    assert "Content-Encoding" in error_of(response)["message"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("temperature", True, "got true"),
        ("prompt", None, "got null"),
        ("max_tokens", [None, {"a": False}], "got [null, {'a': false}]"),
        ("stop", "", "stop must be non-empty strings, got ''"),
        ("stop", [""], "stop must be non-empty strings, got ''"),
    ],
)
def test_answers_to_json_speak_json(client: TestClient, field: str, value: Any, words: str) -> None:
    message = error_of(client.post("/v1/completions", json=GOOD | {field: value}))["message"]
    assert message.endswith(words)


def test_min_tokens_tells_the_default_that_it_exceeds(client: TestClient) -> None:
    error = error_of(client.post("/v1/completions", json=GOOD | {"min_tokens": 20}))
    assert error["param"] == "min_tokens"
    assert "at most max_tokens, which is 16 unless given, got 20" in error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "model": "m" * 10**6}),
        ("/v1/completions", {"prompt": "a", "logit_bias": {str(token): 1000 for token in range(1024)}}),
        ("/v1/completions", {"prompt": "a", "logit_bias": {str(token): None for token in range(20_000)}}),
        ("/v1/completions", {"prompt": [None] * 20_000}),
        ("/v1/completions", {"prompt": [1, "a", [1]] * 20_000}),
        ("/v1/completions", {"prompt": [[]] * 20_000}),
        ("/v1/completions", {"prompt": "a", "stop": ["s" * 1000] * 15 + [""]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [1] * 100}] * 1000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "t" * 10**6}]}]}),
        ("/v1/completions/" + "x" * 10**4, {}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 10**4000}),
    ],
)
def test_a_novel_is_not_sent_back(client: TestClient, path: str, body: dict[str, Any]) -> None:
    response = client.post(path, json=body)
    assert 400 <= response.status_code < 500
    assert len(error_of(response)["message"]) < 400


def test_half_a_surrogate_in_a_name_is_quoted_safely(client: TestClient) -> None:
    response = client.post("/v1/completions", content=b'{"prompt": "a", "model": "\\ud800"}', headers=JSON)
    assert response.status_code == 404
    assert "\\ud800" in error_of(response)["message"]


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", None])
def test_content_type_must_be_json(client: TestClient, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    response = client.post("/v1/completions", content=json.dumps(GOOD), headers=headers)
    assert response.status_code == 415
    assert "application/json" in error_of(response)["message"]


def test_json_with_a_charset_is_json(client: TestClient) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    assert client.post("/v1/completions", content=json.dumps(GOOD), headers=headers).status_code == 200


def test_unknown_route_and_method(client: TestClient) -> None:
    missing = client.post("/v1/embeddings", json={})
    assert missing.status_code == 404
    assert "POST /v1/embeddings" in error_of(missing)["message"]
    wrong = client.get("/v1/chat/completions")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert "POST" in error_of(wrong)["message"]


def test_unknown_model_card(client: TestClient) -> None:
    response = client.get("/v1/models/other")
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"


def test_huge_body_is_refused_whether_its_length_is_told_or_not(client: TestClient) -> None:
    body = b'{"prompt": "' + b"a" * MAX_BODY_BYTES + b'"}'

    def chunks() -> Any:
        yield from (body[at : at + 2**20] for at in range(0, len(body), 2**20))

    for content in (body, chunks()):
        response = client.post("/v1/completions", content=content, headers=JSON)
        assert response.status_code == 413
        assert error_of(response)["code"] == "request_too_large"
        assert f"{MAX_BODY_BYTES:,}" in error_of(response)["message"]


def test_a_model_without_template_says_where_to_go(engine: Any) -> None:
    from headstart.server.app import build_app

    http = TestClient(build_app(engine, engine.tokenizer, None))
    response = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
    assert response.status_code == 400
    assert "/v1/completions" in error_of(response)["message"]
    assert http.post("/v1/completions", json=GOOD).status_code == 200


def test_a_bug_is_a_500_that_tells_nothing_of_the_inside(
    client: TestClient, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(type(engine), "generate", broken)
    response = client.post("/v1/completions", json=GOOD)
    assert response.status_code == 500
    error = error_of(response)
    assert error["code"] == "internal_error"
    assert "secret" not in error["message"]


BOTH: dict[str, list[Any]] = {  # what asks for something, then what asks for nothing
    "bad_words": [["x"], []],
    "allowed_token_ids": [[1], None],
    "structural_tag": ["{}", None],
    "use_beam_search": [True, False],
    "length_penalty": [0.5, 1.0, 1],
    "logits_processors": [["x"], []],
    "thinking_token_budget": [10, None],
    "vllm_xargs": [{"a": 1}, {}],
    "detokenize": [False, True],
    "truncation_side": ["right", "left"],
    "store": [True, False],
    "service_tier": ["flex", "auto", "default"],
    "verbosity": ["low", "medium"],
    "moderation": [{"model": "m"}, None],
}
CHAT_ONLY: dict[str, list[Any]] = {
    "web_search_options": [{}, None],
    "mm_processor_kwargs": [{"a": 1}, {}],
}
COMPLETIONS_ONLY: dict[str, list[Any]] = {"prompt_embeds": ["AAAA", None]}
CHAT: tuple[str, dict[str, Any]] = (
    "/v1/chat/completions",
    {"messages": [{"role": "user", "content": "hi"}]},
)
NOT_YET = [
    *((*CHAT, name, *values) for name, values in (BOTH | CHAT_ONLY).items()),
    *(("/v1/completions", GOOD, name, *values) for name, values in (BOTH | COMPLETIONS_ONLY).items()),
]


@pytest.mark.parametrize(
    ("path", "body", "name", "values"),
    [(path, body, name, values) for path, body, name, *values in NOT_YET],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_change_the_answer_is_refused_and_never_ignored(
    client: TestClient, path: str, body: dict[str, Any], name: str, values: list[Any]
) -> None:
    asks, *neutral = values
    response = client.post(path, json={**body, name: asks})
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    for value in (*neutral, None):
        assert client.post(path, json={**body, name: value}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_what_asks_for_nothing_passes(client: TestClient, path: str) -> None:
    neutral = {
        "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "user": "u", "stop": None,
        "logprobs": None, "temperature": None, "seed": None, "max_tokens": None, "stream": False,
        "stream_options": None, "cache_salt": None, "something_unknown": {"a": 1},
    }  # fmt: skip
    own = (
        {"messages": [{"role": "user", "content": "hi", "unknown": 1}], "tools": [], "tool_choice": "auto"}
        | {"response_format": {"type": "text"}, "logprobs": False, "top_logprobs": None}
        if "chat" in path
        else {"prompt": "hi", "echo": False, "best_of": 1, "suffix": None}
    )
    assert client.post(path, json=neutral | own).status_code == 200


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/v1/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/tokenize", "did you mean /tokenize?"),
        ("/v1/embeddings", "GET /openapi.json lists what there is"),
        ("/" + "x" * 10_000, "GET /openapi.json lists what there is"),
    ],
)
def test_a_wrong_base_url_is_told_the_right_path(client: TestClient, path: str, meant: str) -> None:
    error = error_of(client.post(path, json=GOOD))
    assert error["code"] == "unknown_url"
    assert error["message"].endswith(meant)
