"""The bound on a request's body, message by message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from headstart.server.body_limit import BodyLimit


def read_through(chunks: list[bytes], max_bytes: int) -> list[bytes]:
    """What an app behind a limit of ``max_bytes`` receives of ``chunks``."""
    received: list[bytes] = []
    coming = iter(chunks)

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        received.extend([(await receive())["body"] for _ in chunks])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": next(coming), "more_body": True}

    async def send(_message: Any) -> None:
        raise AssertionError

    asyncio.run(BodyLimit(app, max_bytes)({"type": "http"}, receive, send))
    return received


def test_a_body_up_to_the_limit_passes_untouched() -> None:
    assert read_through([b"abc", b"", b"de"], 5) == [b"abc", b"", b"de"]


def test_chunks_are_added_up() -> None:
    with pytest.raises(HTTPException, match="at most 4 bytes") as refused:
        read_through([b"abc", b"", b"de"], 4)
    assert refused.value.status_code == 413
