"""A bound on what one request may make the server read."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """ASGI middleware: a body of more than ``max_bytes`` is a 413, before it has been read to its end.

    (Starlette's own answers in plain text.)
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what the app receives."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                # The one kind of exception that FastAPI lets pass while it reads a body.
                raise HTTPException(413, f"the body must be at most {self._max_bytes:,} bytes")
            return message

        await self._app(scope, counted, send)
