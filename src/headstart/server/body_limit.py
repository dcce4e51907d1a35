"""Bounds on what one request may make the server read, and on how long it may take to send it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headstart.errors import RequestError

PATIENCE_S = 30.0
"""So long may a body take …"""
BYTES_PER_S = 16 * 2**10
"""… and a second more for each so many bytes of it that have come."""


class BodyLimit:
    """ASGI middleware that refuses bodies of more than ``max_bytes``, slow ones and compressed ones.

    A length that is told beforehand is refused before anything is read.  The refusal is a `RequestError`
    that ``receive`` raises (413, 408 or 415): so whoever reads no body is not concerned.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int,
        *,
        patience_s: float = PATIENCE_S,
        bytes_per_s: float = BYTES_PER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._bytes_per_s = bytes_per_s
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Watch what the app receives."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        began = self._clock()
        num_bytes, complete = 0, False

        async def watched() -> Message:
            nonlocal num_bytes, complete
            if complete:  # what comes now is the client's leaving, whenever it likes
                return await receive()
            if not num_bytes:
                self._check(headers)
            due = began + self._patience_s + num_bytes / self._bytes_per_s
            try:
                async with asyncio.timeout(due - self._clock()):
                    message = await receive()
            except TimeoutError:
                raise _too_slow(num_bytes, self._clock() - began) from None
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise self._too_large()
            complete = not message.get("more_body", False)
            return message

        await self._app(scope, watched, send)

    def _check(self, headers: Headers) -> None:
        """What the headers alone show to be wrong."""
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise RequestError(
                "the body must be sent as it is: this server takes no Content-Encoding",
                code="unsupported_content_encoding",
                status=415,
            )
        told = headers.get("content-length", "")
        if told.isdecimal() and int(told) > self._max_bytes:
            raise self._too_large()

    def _too_large(self) -> RequestError:
        return RequestError(
            f"the body must be at most {self._max_bytes:,} bytes", code="request_too_large", status=413
        )


def _too_slow(num_bytes: int, seconds: float) -> RequestError:
    return RequestError(
        f"the body did not come: {num_bytes:,} bytes of it in {seconds:.0f} seconds",
        code="request_timeout",
        status=408,
    )
