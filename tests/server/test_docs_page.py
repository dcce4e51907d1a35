"""The page of the routes, and the document that it reads."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from headstart.server.docs import POLICY


def operations(client: TestClient) -> list[tuple[str, str, dict[str, Any]]]:
    paths = client.get("/openapi.json").json()["paths"]
    return [(path, method, told) for path, methods in paths.items() for method, told in methods.items()]


def test_the_page_needs_nobody_else(client: TestClient) -> None:
    response = client.get("/docs")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert response.headers["content-security-policy"] == POLICY
    assert "://" not in response.text
    links = re.findall(r"""(?:src|href)=["']([^"']*)|fetch\("([^"]*)"\)""", response.text)
    assert {one or other for one, other in links} == {"data:,", "openapi.json"}
    assert client.get("/redoc").status_code == 404


def test_the_document_tells_of_every_route(client: TestClient) -> None:
    names = [told["operationId"] for *_, told in operations(client)]
    assert len(names) == len(set(names))
    for path, method, told in operations(client):
        assert told["tags"], path
        assert told["summary"], path
        assert told["description"], path
        assert {"4XX", "5XX"} < told["responses"].keys()
        answer = told["responses"]["200"]["content"]
        for kind, content in answer.items():
            assert content["schema"], (path, method, kind)
        if "requestBody" in told:
            assert told["requestBody"]["content"]["application/json"]["schema"]


@pytest.mark.parametrize("name", ["ChatRequest", "CompletionRequest"])
def test_fields_say_what_they_take(client: TestClient, name: str) -> None:
    fields = client.get("/openapi.json").json()["components"]["schemas"][name]["properties"]
    assert fields["temperature"]["maximum"] == 100
    assert fields["use_beam_search"]["enum"] == [None, False]
    assert "token ids" in fields["stop_token_ids"]["description"]
    assert [
        field for field, told in fields.items() if not told.keys() & {"enum", "anyOf", "$ref", "type"}
    ] == []


@pytest.mark.parametrize(
    "path", ["/health", "/ping", "/version", "/v1/models", "/metrics", "/docs", "/openapi.json"]
)
def test_head_is_get_without_a_body(client: TestClient, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert head.status_code == get.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == get.headers["content-type"]


def test_ping_is_health(client: TestClient, engine: Any) -> None:
    for method in ("GET", "POST"):
        assert client.request(method, "/ping").json() == {"status": "ok"}
    engine.why_unhealthy = "it hangs"
    for method in ("GET", "POST"):
        assert client.request(method, "/ping").status_code == 503


def test_version(client: TestClient) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", client.get("/version").json()["version"])
