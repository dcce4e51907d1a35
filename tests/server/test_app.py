"""The routes around generation: models, health, resetting the cache, the OpenAPI document."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from starlette.testclient import TestClient


def test_models_are_listed_and_shown(client: TestClient) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    (card,) = listed["data"]
    assert isinstance(card["created"], int)
    assert card | {"created": 0} == {
        "id": "fake/model",
        "object": "model",
        "created": 0,
        "owned_by": "headstart",
        "max_model_len": 1000,
    }
    assert client.get("/v1/models/fake/model").json() == card  # a slash in a name is part of it


def test_health_follows_the_engine(client: TestClient, engine: Any) -> None:
    assert client.get("/health").status_code == 200
    engine.why_unhealthy = "the engine was killed by signal 9; a new one is being started"
    response = client.get("/health")
    assert response.status_code == 503
    assert "signal 9" in response.json()["error"]["message"]
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "engine_unavailable")
    assert int(response.headers["retry-after"]) > 0


def test_who_is_turned_away_is_told_when_to_come_again(client: TestClient, engine: Any) -> None:
    engine.full = True
    response = client.post("/v1/completions", json={"prompt": "hi"})
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    assert response.json()["error"]["type"] == "rate_limit_error"


def test_reset_forgets_what_was_cached(client: TestClient) -> None:
    def cached() -> int:
        usage = client.post("/v1/completions", json={"prompt": "hello"}).json()["usage"]
        count: int = usage["prompt_tokens_details"]["cached_tokens"]
        return count

    assert [cached(), cached()] == [0, 4]
    response = client.post("/reset_prefix_cache")
    assert (response.status_code, response.json()) == (200, {"success": True})
    assert cached() == 0


def test_reset_is_refused_while_blocks_are_in_use(client: TestClient, engine: Any) -> None:
    engine.blocks_in_use = True
    response = client.post("/reset_prefix_cache")
    assert response.status_code == 409
    assert response.json()["success"] is False
    assert response.json()["error"]["code"] == "blocks_in_use"


def test_openapi_says_what_is_sent_and_answered(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert set(chat["responses"]) == {"200", "4XX", "5XX"}
    assert set(document["paths"]) >= {
        "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{name}", "/health", "/metrics",
        "/reset_prefix_cache", "/v1/cache/warm", "/v1/cache/explain", "/version", "/ping", "/tokenize",
        "/detokenize",
        "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    }  # fmt: skip


def test_the_http_side_imports_no_torch() -> None:
    code = "import headstart.cli.serve, sys; print('torch' in sys.modules, 'transformers' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["False", "False"]
