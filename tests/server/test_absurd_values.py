"""Absurd values in every field of the request bodies, and bodies that are none: never a 5xx."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from headstart.server.app import build_app
from headstart.server.messages_protocol import MessagesRequest
from headstart.server.protocol import ChatRequest, CompletionRequest
from headstart.server.responses_protocol import ResponsesRequest
from headstart.text import ChatTemplate
from tests.server.conftest import TEMPLATE, FakeEngine, byte_tokenizer

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
RESPONSE, MESSAGE = "/v1/responses", "/v1/messages"
BASES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETION: {"prompt": "hi"},
    RESPONSE: {"input": "hi"},
    MESSAGE: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
}
FIELDS = {
    CHAT: [*ChatRequest.model_fields, "unknown"],
    COMPLETION: [*CompletionRequest.model_fields, "unknown"],
    RESPONSE: [*ResponsesRequest.model_fields, "truncation"],
    MESSAGE: [*MessagesRequest.model_fields],
}
DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]

NUMBERS = [0, -0.0, 1, -1, 2, 3, 21, 1.5, 5e-324, 1e308, -1e308, math.nan, math.inf, -math.inf]
NUMBERS += [2**31, -(2**31) - 1, 2**63, 2**64, -(2**64), 10**400, -(10**400), 1e30]
TEXTS = [
    "",
    "a",
    "\0",
    "\ud800",
    "a\udfff",
    "1",
    "-1",
    "1e5",
    "nan",
    "none",
    "auto",
    "@",
    "ä" * 3000,
    "<end>",
    "\ufeff",
]
SCALARS = (
    st.sampled_from([None, True, False, *NUMBERS, *TEXTS]) | st.integers() | st.floats() | st.text(max_size=5)
)
KEYS = st.sampled_from(
    [*TEXTS, "0", "299", "300", str(10**400), "type", "text", "role", "content", "include_usage"]
)
KEYS |= st.sampled_from(["messages", "self", "extra", "m", "name"])
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "system", "developer", "tool", "king", "", 1]),
        "content": SCALARS
        | st.lists(st.fixed_dictionaries({}, optional={"type": SCALARS, "text": SCALARS}), max_size=2),
        "name": SCALARS,
        "tool_calls": SCALARS,
    },
)
VALUES = st.one_of(
    SCALARS,
    MESSAGES,
    st.recursive(
        SCALARS | MESSAGES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from([DEEP, ["s"] * 5000, [1] * 5000, [[1]] * 2000, [[]] * 2000, [None] * 2000, {"": DEEP}]),
    st.sampled_from([{str(token): 1 for token in range(1025)}, [BASES[CHAT]["messages"][0]] * 10_001]),
)  # fmt: skip


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    engine = FakeEngine(byte_tokenizer(tmp_path_factory.mktemp("bytes")))
    app = build_app(engine, engine.tokenizer, ChatTemplate(TEMPLATE))  # type: ignore[arg-type]
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client
    assert not engine.running


def check(http: TestClient, path: str, content: bytes) -> str | None:
    """Demand an answer or a good refusal; the field that a refusal names."""
    response = http.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404), response.text
    assert "internal_error" not in response.text
    if response.status_code == 200:
        return None
    error = response.json()["error"]
    assert 10 < len(error["message"]) < 600
    if path == MESSAGE:
        assert error["type"] in ("invalid_request_error", "not_found_error")
        return None
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["code"]
    param: str | None = error["param"]
    return param


def still_serves(http: TestClient) -> bool:
    return http.post(COMPLETION, json=BASES[COMPLETION]).status_code == 200


@pytest.mark.parametrize("path", BASES)
@settings(max_examples=100)
@given(data=st.data())
def test_absurd_values(http: TestClient, path: str, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(FIELDS[path]), min_size=1, max_size=2, unique=True))
    body = BASES[path] | {name: data.draw(VALUES, label=name) for name in names}
    check(http, path, json.dumps(body).encode())
    assert still_serves(http)


@pytest.mark.parametrize("path", BASES)
def test_every_field_with_every_number_and_text(http: TestClient, path: str) -> None:
    for name in FIELDS[path]:
        for value in (*NUMBERS, *TEXTS):
            named = check(http, path, json.dumps(BASES[path] | {name: value}).encode())
            # What makes a prompt too long is told of the field that the conversation is in.
            allowed = (name, {"chat_template": "messages", "instructions": "input"}.get(name, name))
            assert named is None or named.startswith(allowed), (name, value)
        assert still_serves(http)


@settings(max_examples=100)
@given(st.data())
def test_bodies_that_are_none(http: TestClient, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([CHAT, COMPLETION]))
    good = json.dumps(BASES[path] | {"stop": ["a", "\ud800"], "temperature": 1e5}).encode()
    cut, to = sorted(data.draw(st.tuples(*[st.integers(0, len(good))] * 2)))
    check(http, path, good[:cut] + data.draw(st.binary(max_size=4)) + good[to:])
    assert still_serves(http)
