"""A short form of the long run: schemathesis finds no 5xx, no hang, and a server that is itself after it."""

from __future__ import annotations

import pytest

from bench.api_fuzz import _parts, _with_integers, _wrong_with, fuzz, small_server


@pytest.mark.timeout(600)
def test_no_request_that_can_be_made_up_does_harm() -> None:
    told: list[str] = []
    with small_server() as url:
        answers = fuzz(url, examples=25, first_seed=7, told=told.append)
    assert answers.failures == []
    assert answers.total >= 200
    served = {route for route, _, status in answers.counts if status == 200}
    assert {"POST /v1/chat/completions", "POST /v1/completions", "POST /tokenize"} <= served
    for route, kind, status in answers.counts:  # a prompt beside messages is no harm
        assert kind == "valid" or status >= 400 or route == "POST /tokenize", route
    assert "POST /v1/completions" in answers.table()
    assert told[-1].startswith(f"{answers.total:,} requests")


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (500, '{"error": {"message": "oh"}}', "status 500"),
        (200, 'data: {"error":{"message":"the engine is gone","type":"server_error"}}', "amid a stream"),
        (400, "<html>", "without an error object"),
        (404, '{"detail": "Not Found"}', "without an error object"),
        (422, '{"error": {"message": ""}}', "without a sentence"),
    ],
)
def test_what_is_wrong_is_seen(status: int, text: str, words: str) -> None:
    assert words in (_wrong_with(status, text) or "")


@pytest.mark.parametrize(
    ("status", "text"), [(200, "anything"), (400, '{"error": {"message": "it is hot"}}')]
)
def test_what_is_well_is_let_through(status: int, text: str) -> None:
    assert _wrong_with(status, text) is None


def test_whole_numbers_are_integers() -> None:
    assert repr(_with_integers({"a": [3.0, 1e300, 0.5, True, None, "3.0"]})) == repr(
        {"a": [3, 1e300, 0.5, True, None, "3.0"]}
    )
    assert list(_parts({"a": [{"b": 1}]})) == [{"a": [{"b": 1}]}, {"b": 1}]
