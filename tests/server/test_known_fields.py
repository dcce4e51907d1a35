"""Fields that nobody knows: named in a header, or refused when the server is strict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field
from starlette.testclient import TestClient

from headstart.config import ServerConfig
from headstart.server.app import build_app
from headstart.server.known_fields import HEADER, MAX_NAMED, MAX_OBJECTS, header_of, unknown_fields
from headstart.text import ChatTemplate

MESSAGE = {"role": "user", "content": "hi"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [MESSAGE]},
    "/v1/completions": {"prompt": "hi"},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1]},
}


@pytest.fixture
def strict(engine: Any) -> Iterator[TestClient]:
    app = build_app(engine, engine.tokenizer, ChatTemplate("{{ messages }}"), ServerConfig(strict=True))
    with TestClient(app) as http:
        yield http


@pytest.mark.parametrize("path", BODIES)
def test_they_are_ignored_and_named(client: TestClient, path: str) -> None:
    response = client.post(path, json={**BODIES[path], "colour": 1, "mood": None})
    assert response.status_code == 200
    assert response.headers[HEADER] == "colour, mood"
    assert HEADER not in client.post(path, json=BODIES[path]).headers


@pytest.mark.parametrize("path", BODIES)
def test_a_strict_server_refuses_them(strict: TestClient, path: str) -> None:
    assert strict.post(path, json=BODIES[path]).status_code == 200
    response = strict.post(path, json={**BODIES[path], "modell": "x"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("modell", "unknown_parameter")
    assert "did you mean model?" in error["message"]
    assert (
        "did you mean" not in strict.post(path, json={**BODIES[path], "zzzz": 1}).json()["error"]["message"]
    )


def test_streams_and_errors_name_them_too(client: TestClient) -> None:
    streamed = client.post("/v1/completions", json={"prompt": "hi", "stream": True, "colour": 1})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.headers[HEADER] == "colour"
    refused = client.post("/v1/completions", json={"prompt": "hi", "n": 0, "colour": 1})
    assert refused.status_code == 400
    assert refused.headers[HEADER] == "colour"


def test_fields_of_inner_objects_are_found(client: TestClient, strict: TestClient) -> None:
    body = {
        "messages": [MESSAGE, MESSAGE | {"colour": 1}],
        "stream": True,
        "stream_options": {"include_usage": True, "include": 1},
        "metadata": {"anything": 1},
        "logit_bias": {"3": 1},
    }
    response = client.post("/v1/chat/completions", json=body)
    assert response.headers[HEADER] == "messages[1].colour, stream_options.include"
    error = strict.post("/v1/chat/completions", json=body).json()["error"]
    assert error["param"] == "messages[1].colour"


def test_what_is_told_of_them_is_bounded_and_safe(client: TestClient, strict: TestClient) -> None:
    many = client.post("/v1/completions", json={"prompt": "hi", **{f"field{i}": i for i in range(1000)}})
    assert many.headers[HEADER] == ", ".join([f"field{i}" for i in range(MAX_NAMED)] + ["..."])
    long = client.post(
        "/v1/completions", json={"prompt": "hi", **{f"{'x' * 10_000}{i}": i for i in range(99)}}
    )
    assert len(long.headers[HEADER]) < 2000
    odd = client.post("/v1/completions", json={"prompt": "hi", "a\r\nX-Evil: 1, é": 1})
    assert odd.headers[HEADER] == "a%0D%0AX-Evil%3A%201%2C%20%C3%A9"
    half = b'{"prompt": "hi", "\\ud800": 1}'
    for http, status in ((client, 200), (strict, 400)):
        answer = http.post("/v1/completions", content=half, headers={"content-type": "application/json"})
        assert answer.status_code == status


def test_other_refusals_come_first_or_stay(client: TestClient, strict: TestClient) -> None:
    for http in (client, strict):
        plain = http.post("/v1/completions", content="{}", headers={"content-type": "text/plain"})
        assert plain.status_code == 415
        nested = http.post("/v1/completions", content="[" * 100_000, headers={"content-type": "text/plain"})
        assert nested.status_code == 415
        not_yet = http.post("/v1/completions", json={"prompt": "hi", "suffix": "x"})
        assert not_yet.json()["error"]["code"] == "unsupported_parameter"
        assert http.post("/v1/completions", json=[1]).json()["error"]["code"] == "invalid_type"


class Text(BaseModel):
    kind: str
    text: str


class Image(BaseModel):
    kind: str
    url: str = Field(alias="image_url")
    below: list[Image] = []


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Body(BaseModel):
    parts: Annotated[list[Text | Image] | None, "words"] = None
    free: dict[str, Any] | Text | None = None
    open: Open | None = None


def paths(body: Any) -> list[str]:
    return [found.path for found in unknown_fields((Body,), body)]


def test_of_several_models_the_fitting_one_counts() -> None:
    assert paths({"parts": [{"kind": "i", "image_url": "u"}, {"kind": "t", "text": "t", "u": 1}]}) == [
        "parts[1].u"
    ]
    assert paths(
        {"parts": [{"kind": "i", "image_url": "", "below": [{"kind": "i", "image_url": "", "x": 1}]}]}
    ) == ["parts[0].below[0].x"]


def test_what_takes_anything_is_left_alone() -> None:
    assert paths({"free": {"x": 1}, "open": {"y": 1}, "parts": "no list"}) == []
    assert paths([{"x": 1}]) == ["[0].x"]
    assert paths("text") == []


def test_huge_bodies_are_not_searched_to_the_end() -> None:
    parts: list[Any] = [{"kind": "t", "text": ""}] * (MAX_OBJECTS + 5)
    assert paths({"parts": [*parts, {"kind": "t", "text": "", "x": 1}]}) == []
    deep: dict[str, Any] = {"kind": "i", "image_url": ""}
    for _ in range(5000):
        deep = {"kind": "i", "image_url": "", "below": [deep], "x": 1}
    assert 0 < len(paths({"parts": [deep]})) < 10


def test_the_header_says_when_there_are_more() -> None:
    assert header_of(["a"] * MAX_NAMED) == ", ".join("a" * MAX_NAMED)
    assert header_of(["a"] * (MAX_NAMED + 1)).endswith("a, ...")


def test_the_empty_name_leaves_no_space_at_the_end() -> None:
    """h11 would refuse to send the header, and the client would see a connection that breaks off."""
    assert header_of(["colour", ""]) == 'colour, ""'
    assert header_of([" "]) == "%20"
