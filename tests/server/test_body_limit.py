"""The bounds on a request's body, message by message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headstart.errors import RequestError
from headstart.server.body_limit import BodyLimit

NEVER = b"never"  # a chunk that does not come


class Reading:
    """An app behind a limit that reads ``chunks`` to the end; ``seconds`` pass before each of them."""

    def __init__(self, chunks: list[bytes], *, seconds: float = 0.0, **headers: str) -> None:
        self.received: list[bytes] = []
        self.asked = 0
        self._chunks = chunks
        self._headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self._seconds = seconds
        self._now = 0.0

    def run(self, max_bytes: int = 100, **options: float) -> list[bytes]:
        """What arrives of the chunks."""
        limit = BodyLimit(self._app, max_bytes, clock=lambda: self._now, **options)
        coming = iter(self._chunks)
        asyncio.run(limit({"type": "http", "headers": self._headers}, lambda: self._next(coming), self._send))
        return self.received

    async def _app(self, _scope: Any, receive: Any, _send: Any) -> None:
        while True:
            message = await receive()
            self.received.append(message["body"])
            if not message["more_body"]:
                break
        assert (await receive())["type"] == "http.disconnect"

    async def _next(self, coming: Iterator[bytes]) -> Any:
        self.asked += 1
        self._now += self._seconds
        await asyncio.sleep(0)
        if (chunk := next(coming, None)) is None:
            return {"type": "http.disconnect"}
        if chunk is NEVER:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": chunk, "more_body": chunk is not self._chunks[-1]}

    async def _send(self, _message: Any) -> None:
        raise AssertionError


def refusal(reading: Reading, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as refused:
        reading.run(**options)
    return refused.value


def test_a_body_up_to_the_limit_passes_untouched() -> None:
    assert Reading([b"abc", b"", b"de"], content_length="5").run(5) == [b"abc", b"", b"de"]


def test_chunks_are_added_up() -> None:
    error = refusal(Reading([b"abc", b"", b"de"]), max_bytes=4)
    assert (error.status, error.code) == (413, "request_too_large")
    assert "at most 4 bytes" in str(error)


def test_a_length_told_beforehand_is_refused_before_anything_is_read() -> None:
    reading = Reading([b"abcde"], content_length="5")
    assert refusal(reading, max_bytes=4).status == 413
    assert reading.asked == 0


def test_a_length_that_is_a_lie_does_not_help() -> None:
    assert refusal(Reading([b"abc", b"def"], content_length="1"), max_bytes=4).status == 413


@pytest.mark.parametrize("encoding", ["gzip", "br", "x, y"])
def test_compressed_bodies_are_refused_before_anything_is_read(encoding: str) -> None:
    reading = Reading([b"abc"], content_encoding=encoding)
    error = refusal(reading)
    assert (error.status, error.code) == (415, "unsupported_content_encoding")
    assert reading.asked == 0


def test_identity_is_no_compression() -> None:
    assert Reading([b"abc"], content_encoding="identity").run() == [b"abc"]


@pytest.mark.parametrize("chunks", [[NEVER], [b"abc", NEVER]])
def test_a_body_that_does_not_come_is_given_up(chunks: list[bytes]) -> None:
    error = refusal(Reading([*chunks, b""]), patience_s=0.0, bytes_per_s=1e9)
    assert (error.status, error.code) == (408, "request_timeout")


def test_a_body_that_drips_is_given_up_and_one_that_flows_is_not() -> None:
    chunks = [b"0123456789"] * 9 + [b"end"]
    assert len(Reading(chunks, seconds=1.0).run(patience_s=3.0, bytes_per_s=10.0)) == 10
    dripping = Reading(chunks, seconds=2.0)
    error = refusal(dripping, patience_s=3.0, bytes_per_s=10.0)
    assert error.status == 408
    assert 1 < len(dripping.received) < 10


def test_whoever_has_sent_everything_may_wait_for_the_answer_forever() -> None:
    reading = Reading([b"abc"], seconds=10.0)
    assert reading.run(patience_s=11.0) == [b"abc"]  # that the client has left is told at 20
