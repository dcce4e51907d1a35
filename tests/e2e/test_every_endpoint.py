"""Every route, streamed or not, hit or miss, on a real server: usage adds up, errors say what is wrong.

A new route needs a row in `ROUTES`; `test_every_route_that_takes_a_body_has_a_row` asks for it.  Rows of
routes that the server does not have are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from conftest import Server

HANDBOOK = " ".join(f"Rule {number}: station {number} closes at noon." for number in range(12))
Reply = Any
Events = list[Any]


@dataclass(frozen=True)
class Spent:
    """What an answer says it cost, in tokens; ``prompt`` counts the cached ones, too."""

    prompt: int
    cached: int
    completion: int


@dataclass(frozen=True)
class Route:
    """How to use one route.

    ``body`` makes a body from a text.  ``spent`` reads the usage of a whole reply, ``streamed`` that of a
    stream's events; without the first the route generates nothing, without the second it does not stream.
    ``fields`` go into each request of the usage test, ``streaming`` into those that stream.
    ``missing`` is the field without which a body is none, ``long`` whether a text can be too long.
    ``message`` finds the sentence in an error.
    """

    path: str
    body: Callable[[str], dict[str, Any]]
    spent: Callable[[Reply], Spent] | None = None
    streamed: Callable[[Events], Spent] | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    streaming: dict[str, Any] = field(default_factory=lambda: {"stream": True})
    missing: str = "messages"
    long: bool = True
    message: Callable[[Reply], str] = lambda reply: str(reply["error"]["message"])


def openai_usage(reply: Reply) -> Spent:
    usage = reply["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return Spent(
        usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]
    )


def responses_usage(reply: Reply) -> Spent:
    usage = reply["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    return Spent(
        usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]
    )


def anthropic_usage(usage: dict[str, int]) -> Spent:
    read, created = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
    return Spent(usage["input_tokens"] + read + created, read, usage["output_tokens"])


def anthropic_streamed(events: Events) -> Spent:
    [start] = [event["message"]["usage"] for event in events if event["type"] == "message_start"]
    [end] = [event["usage"] for event in events if event["type"] == "message_delta"]
    return anthropic_usage(start | end)


def _messages(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


STREAM_WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
ROUTES = [
    Route(
        "/v1/chat/completions",
        _messages,
        openai_usage,
        lambda events: openai_usage(events[-1]),
        fields={"max_tokens": 4, "temperature": 0},
        streaming=STREAM_WITH_USAGE,
    ),
    Route(
        "/v1/completions",
        lambda text: {"prompt": text},
        openai_usage,
        lambda events: openai_usage(events[-1]),
        fields={"max_tokens": 4, "temperature": 0},
        streaming=STREAM_WITH_USAGE,
        missing="prompt",
    ),
    Route(
        "/v1/responses",
        lambda text: {"input": text, "model": "tiny"},
        responses_usage,
        lambda events: responses_usage(
            next(event["response"] for event in events if event["type"] in ENDS_OF_RESPONSES)
        ),
        fields={"max_output_tokens": 16, "temperature": 0},
        missing="input",
    ),
    Route(
        "/v1/messages",
        lambda text: {**_messages(text), "model": "tiny", "max_tokens": 4},
        lambda reply: anthropic_usage(reply["usage"]),
        anthropic_streamed,
        fields={"temperature": 0},
    ),
    Route("/v1/messages/count_tokens", lambda text: {**_messages(text), "model": "tiny"}),
    Route("/v1/cache/warm", _messages),
    Route("/v1/cache/explain", lambda text: {"request_id": text}, missing="request_id", long=False),
    Route("/tokenize", lambda text: {"prompt": text}, missing="prompt"),
    Route("/tokenize", _messages, missing="prompt"),
    Route("/detokenize", lambda text: {"tokens": list(text.encode())}, missing="tokens"),
]
ENDS_OF_RESPONSES = {"response.completed", "response.incomplete"}
BODILESS = {"/ping", "/reset_prefix_cache"}
GENERATING = [route for route in ROUTES if route.spent is not None]


def named(routes: list[Route]) -> Any:
    """A test's rows."""
    names = [f"{route.path} {next(iter(route.body('')))}" for route in routes]
    return pytest.mark.parametrize("route", routes, ids=names)


@pytest.fixture(scope="module")
def known(tiny_server: Server) -> dict[str, Any]:
    paths: dict[str, Any] = tiny_server.http.get("/openapi.json").json()["paths"]
    return paths


@pytest.fixture(autouse=True)
def _only_what_there_is(request: pytest.FixtureRequest, known: dict[str, Any]) -> None:
    callspec = getattr(request.node, "callspec", None)
    route = callspec.params.get("route") if callspec else None
    if route is not None and route.path not in known:
        pytest.skip(f"this server has no {route.path}")


def test_every_route_that_takes_a_body_has_a_row(known: dict[str, Any]) -> None:
    posts = {path for path, methods in known.items() if "post" in methods}
    assert posts - BODILESS <= {route.path for route in ROUTES}
    assert all("requestBody" not in known[path]["post"] for path in BODILESS)


def ask(server: Server, route: Route, text: str, *, stream: bool) -> Spent:
    assert route.spent is not None
    assert route.streamed is not None
    body = route.body(text) | route.fields | (route.streaming if stream else {})
    response = server.http.post(route.path, json=body)
    assert response.status_code == 200, response.text
    if not stream:
        return route.spent(response.json())
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]
    return route.streamed(events)


@named(GENERATING)
@pytest.mark.parametrize("first_streams", [False, True])
def test_usage_adds_up(tiny_server: Server, route: Route, first_streams: bool) -> None:
    tiny_server.until_idle()
    assert tiny_server.http.post("/reset_prefix_cache").json() == {"success": True}
    counters = ("prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total")
    counters += ("prefix_cache_hits_total",)
    before = [tiny_server.metric(name) for name in counters]
    ways = (first_streams, first_streams, not first_streams)
    cold, warm, other = (ask(tiny_server, route, HANDBOOK, stream=way) for way in ways)
    assert cold.cached == 0
    assert cold.prompt > 100
    assert warm == other == Spent(cold.prompt, cold.prompt - 1, cold.completion)
    tiny_server.until_idle()
    spent = (cold, warm, other)
    told = [sum(one.prompt for one in spent), sum(one.completion for one in spent)]
    told += [told[0], sum(one.cached for one in spent)]
    assert [tiny_server.metric(name) - was for name, was in zip(counters, before, strict=True)] == told


def refused(response: httpx.Response, route: Route, status: int = 400) -> str:
    """The sentence of an error."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    message = route.message(response.json())
    assert 10 < len(message) < 500
    return message


@named(ROUTES)
def test_what_is_no_body_is_refused(tiny_server: Server, route: Route) -> None:
    http, path, json_type = tiny_server.http, route.path, {"content-type": "application/json"}
    assert "not valid JSON" in refused(http.post(path, content=b'{"a": 1,}', headers=json_type), route)
    assert "object" in refused(http.post(path, json=[1]), route)
    assert route.missing in refused(http.post(path, json={}), route)
    assert "Content-Type" in refused(http.post(path, content=b"{}"), route, 415)
    assert http.get(path).status_code == 405


@named(ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_is_not_served_is_refused(tiny_server: Server, route: Route, stream: bool) -> None:
    if (stream and route.streamed is None) or route.path == "/v1/cache/explain":
        pytest.skip("it has no such thing")
    body = route.body("hi") | {"model": "gpt-4"} | ({"stream": True} if stream else {})
    assert "tiny" in refused(tiny_server.http.post(route.path, json=body), route, 404)


@named([route for route in ROUTES if route.long])
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_too_long_is_refused(tiny_server: Server, route: Route, stream: bool) -> None:
    if stream and route.streamed is None:
        pytest.skip("it does not stream")
    body = route.body("word " * 200_000) | ({"stream": True} if stream else {})
    assert "20" in refused(tiny_server.http.post(route.path, json=body), route)


@named(ROUTES)
def test_unknown_fields_are_named_or_refused(
    tiny_server: Server, strict_server: Server, route: Route
) -> None:
    body = route.body("hi") | route.fields | {"colour": "blue"}
    named = tiny_server.http.post(route.path, json=body)
    assert named.headers["X-Headstart-Ignored-Fields"] == "colour"
    assert "colour" in refused(strict_server.http.post(route.path, json=body), route)
    if route.path != "/v1/cache/explain":  # there is nothing to explain yet
        assert named.status_code == 200, named.text
        del body["colour"]
        assert strict_server.http.post(route.path, json=body).status_code == 200


@named(GENERATING)
def test_streams_name_unknown_fields_too(tiny_server: Server, route: Route) -> None:
    body = route.body("hi") | route.fields | route.streaming | {"colour": "blue"}
    with tiny_server.http.stream("POST", route.path, json=body) as response:
        assert response.status_code == 200
        assert response.headers["X-Headstart-Ignored-Fields"] == "colour"
        response.read()
