from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from headstart.cache import MissReason, MissReport
from headstart.server.access_log import line_of
from headstart.server.visit import VisitRecord

REPORT = MissReport(
    "cmpl-1a-0",
    812,
    600,
    {MissReason.LAST_TOKEN: 1, MissReason.EVICTED: 40, MissReason.DIVERGED: 171},
    diverged_at=640,
    evicted_s=12.34,
    evicted_blocks=70,
)
SECRET = "canary-of-the-prompt"


def record(**fields: Any) -> VisitRecord:
    told = {"request_id": "1a", "method": "POST", "path": "/v1/completions", "status": 200, "seconds": 0.914}
    return VisitRecord(**(told | fields))


def test_a_line_tells_all_of_a_request() -> None:
    whole = record(
        answer_id="cmpl-1a",
        prompt_tokens=812,
        cached_tokens=600,
        completion_tokens=64,
        finish_reasons=("stop",),
        first_token_s=0.0431,
        reports=(REPORT,),
    )
    assert line_of(whole) == (
        "POST /v1/completions 200 in 0.91 s, cmpl-1a: 812 prompt tokens, 600 cached, 171 diverged, "
        "40 evicted, 1 last_token; first difference at token 640; evicted 12.3 s and 70 taken blocks ago; "
        "64 generated (stop); first token after 43 ms"
    )


def test_several_prompts_are_added_up_and_have_no_places() -> None:
    several = record(
        answer_id="cmpl-1a",
        prompt_tokens=1624,
        cached_tokens=1200,
        completion_tokens=4,
        finish_reasons=("length", "length", "stop"),
        reports=(REPORT, REPORT),
    )
    assert line_of(several).endswith(
        "1624 prompt tokens, 1200 cached, 342 diverged, 80 evicted, 2 last_token; "
        "4 generated (2 length, stop)"
    )


def test_what_was_refused_has_a_line_with_its_id() -> None:
    assert line_of(record(status=400)) == "POST /v1/completions 400 in 0.91 s, request 1a"
    assert "request mine" in line_of(record(request_id="mine", answer_id="cmpl-1a", prompt_tokens=1))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "headstart.server.access_log"]


def test_a_path_cannot_forge_a_line_nor_tell_a_secret(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client.post("/v1/x%0aINFO%20forged%1b[31m")
    client.get(f"/v1/models/{SECRET}")
    (forged, told) = lines(caplog)
    assert forged.startswith("POST (no route) 404 in ")
    assert told.startswith("GET /v1/models/{name} 404 in ")


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_logged_once_it_is_explained(
    client: TestClient, engine: Any, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO)
    body = {"prompt": SECRET, "max_tokens": 3, "cache_salt": "canary-of-the-salt", "stream": stream}
    reply = client.post("/v1/completions", json=body, headers={"X-Request-Id": "mine"})
    assert reply.headers["x-request-id"] == "mine"
    assert lines(caplog) == []
    name = engine.names[-1]
    engine.explain(MissReport(name, 20, 0, {MissReason.COLD: 19, MissReason.LAST_TOKEN: 1}))
    (line,) = lines(caplog)
    assert line.startswith("POST /v1/completions 200 in ")
    assert name.removesuffix("-0") in line
    assert "request mine: 20 prompt tokens, 0 cached, 19 cold, 1 last_token; 3 generated (length)" in line
    assert "canary" not in caplog.text


def test_a_refusal_is_logged_and_says_nothing_of_the_body(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reply = client.post("/v1/completions", json={"prompt": SECRET, "max_tokens": "canary"})
    (line,) = lines(caplog)
    assert line.startswith("POST /v1/completions 400 in ")
    assert line.endswith(f"request {reply.headers['x-request-id']}")
    assert "canary" not in caplog.text


def test_reads_that_go_well_have_no_line(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for path in ("/health", "/metrics", "/v1/models"):
        client.get(path)
    assert lines(caplog) == []
    client.get("/v1/models/nobody")
    assert len(lines(caplog)) == 1


def test_without_explanations_nobody_waits_for_them(
    make_client: Any, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine.info = msgspec.structs.replace(engine.info, explain_misses=False)
    make_client().post("/v1/completions", json={"prompt": "ab", "max_tokens": 1})
    (line,) = lines(caplog)
    assert "2 prompt tokens, 0 cached; 1 generated (length)" in line


def test_what_an_engine_owes_for_ever_is_told_in_the_end(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(260):
        client.post("/v1/completions", json={"prompt": "ab", "max_tokens": 1})
    assert len(lines(caplog)) == 260 - 256
    client.__exit__()  # the server stops
    assert len(lines(caplog)) == 260


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "a\u00e9", "{}"])
def test_an_id_that_could_not_stand_in_a_log_is_replaced(client: TestClient, name: str) -> None:
    reply = client.get("/health", headers={"X-Request-Id": name.encode()})
    assert reply.headers["x-request-id"] != name
    assert len(reply.headers["x-request-id"]) == 32


def test_an_answer_is_named_after_its_request(client: TestClient) -> None:
    reply = client.post("/v1/completions", json={"prompt": "ab", "max_tokens": 1})
    assert reply.json()["id"] == f"cmpl-{reply.headers['x-request-id']}"


def test_anthropics_clients_find_it_where_they_look(client: TestClient) -> None:
    refused = client.post("/v1/messages", json={}, headers={"X-Request-Id": "mine"})
    assert (refused.headers["request-id"], refused.headers["x-request-id"]) == ("mine", "mine")
    assert "request-id" not in client.post("/v1/completions", json={}).headers
