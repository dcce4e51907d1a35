from __future__ import annotations

import secrets
import uuid
from typing import Any

import pytest
from starlette.testclient import TestClient

from headstart.server.caller import Caller
from headstart.server.salt_watch import SaltWatch, is_guessable


@pytest.mark.parametrize(
    "salt",
    [
        "a", "tenant-1", "x" * 128, "0123456789" * 2, "2026-12-01 15:08:36", "customer support team",
        "Customer-Support-Team", "ababababababababab", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1",
    ],
)  # fmt: skip
def test_what_can_be_guessed(salt: str) -> None:
    assert is_guessable(salt)


def test_what_cannot() -> None:
    for _ in range(100):
        assert not is_guessable(secrets.token_hex(16))
        assert not is_guessable(str(uuid.uuid4()))
        assert not is_guessable("0" + secrets.token_urlsafe(16))


def test_one_warning_for_all_of_them_and_none_of_them_in_it(caplog: pytest.LogCaptureFixture) -> None:
    watch = SaltWatch()
    watch.look(secrets.token_hex(16), Caller())
    assert caplog.records == []
    watch.look("canary", Caller("abcdef012345"))
    watch.look("another", Caller())
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "a client of tenant abcdef012345 sent a cache_salt that is short" in record.getMessage()
    assert "canary" not in caplog.text


def test_requests_are_watched(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    body: dict[str, Any] = {"prompt": "hi", "cache_salt": "canary"}
    for _ in range(3):
        assert client.post("/v1/completions", json=body).status_code == 200
    (record,) = caplog.records
    assert record.getMessage().startswith("a client sent a cache_salt")
    assert "canary" not in caplog.text


@pytest.mark.parametrize("salt", ["", "canary@home", "canary" * 30, ["canary"], {"canary": 1}, 7])
def test_a_salt_that_is_refused_is_not_quoted(client: TestClient, salt: Any) -> None:
    response = client.post("/v1/completions", json={"prompt": "hi", "cache_salt": salt})
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "cache_salt must be a string of 1 to 128 characters without @, /, \\ and NUL",
        "type": "invalid_request_error",
        "param": "cache_salt",
        "code": "invalid_value",
    }
