from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from headstart.cache import MissReason, MissReport
from headstart.server.app import build_app
from headstart.server.caller import Caller
from headstart.server.explain import WORDS
from headstart.text import ChatTemplate

URL = "/v1/cache/explain"
REPORT = {MissReason.DIVERGED: 100, MissReason.ISOLATED: 5, MissReason.COLD: 6, MissReason.LAST_TOKEN: 1}


def complete(client: TestClient, prompt: Any = "hi") -> str:
    name: str = client.post("/v1/completions", json={"prompt": prompt}).json()["id"]
    return name


def test_a_miss_in_words_and_numbers(client: TestClient, engine: Any) -> None:
    name = complete(client)
    engine.explain(MissReport(f"{name}-0", 812, 700, REPORT, 700, 12.5, 77))
    reply = client.post(URL, json={"request_id": name}).json()
    (prompt,) = reply.pop("prompts")
    assert reply == {"object": "cache.explanation", "request_id": name, "status": "complete"}
    reasons = prompt.pop("reasons")
    assert prompt == {
        "index": 0,
        "status": "complete",
        "prompt_tokens": 812,
        "hit_tokens": 700,
        "missed_tokens": 112,
        "first_difference_at": 700,
        "evicted_s": 12.5,
    }
    assert [(one["reason"], one["tokens"]) for one in reasons] == [
        ("diverged", 100),
        ("cold", 11),  # what others hold is not told
        ("last_token", 1),
    ]
    assert all(one["meaning"] and one["advice"] for one in reasons)


def test_every_prompt_of_a_request_is_told_as_soon_as_it_is_reported(client: TestClient, engine: Any) -> None:
    name = complete(client, ["hi", "ho"])
    engine.explain(MissReport(f"{name}-1", 2, 0, {MissReason.COLD: 1, MissReason.LAST_TOKEN: 1}))
    reply = client.post(URL, json={"request_id": name}).json()
    assert reply["status"] == "pending"
    assert "shortly after" in reply["note"]
    first, second = reply["prompts"]
    assert first == {"index": 0, "status": "pending"}
    assert (second["index"], second["status"], second["prompt_tokens"]) == (1, "complete", 2)
    engine.explain(MissReport(f"{name}-0", 2, 1, {MissReason.LAST_TOKEN: 1}))
    reply = client.post(URL, json={"request_id": name}).json()
    assert reply["status"] == "complete"
    assert "note" not in reply


def test_every_reason_that_a_client_is_told_has_words() -> None:
    assert set(WORDS) == set(MissReason) - {MissReason.ISOLATED}


@pytest.mark.parametrize("body", [{}, {"request_id": ""}, {"request_id": 7}, {"request_id": "x" * 257}])
def test_a_request_without_an_id_is_refused(client: TestClient, body: dict[str, Any]) -> None:
    response = client.post(URL, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "request_id"


class Tenants:
    """Finds out who asks, as a real check of keys does."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            scope["headstart.caller"] = Caller(headers.get(b"x-tenant", b"").decode() or None)
        await self._app(scope, receive, send)


@pytest.fixture
def tenants(engine: Any) -> Iterator[TestClient]:
    app = build_app(engine, engine.tokenizer, ChatTemplate("{{ messages }}"))
    with TestClient(Tenants(app)) as http:  # type: ignore[arg-type]
        yield http


def test_nobody_can_tell_anothers_request_from_none(tenants: TestClient) -> None:
    tom, eve = {"x-tenant": "tom"}, {"x-tenant": "eve"}
    name = tenants.post("/v1/completions", json={"prompt": "hi"}, headers=tom).json()["id"]
    assert tenants.post(URL, json={"request_id": name}, headers=tom).status_code == 200
    answers = []
    for who, asked in ((eve, name), ({}, name), (eve, "cmpl-" + "0" * 32)):
        response = tenants.post(URL, json={"request_id": asked}, headers=who)
        assert response.status_code == 404
        answers.append(response.text.replace(asked, "ID"))
    assert len(set(answers)) == 1
    assert "none of your requests" in answers[0]
