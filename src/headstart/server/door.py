"""ASGI middleware at the very front: who asks is settled before anything of a body is read."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from headstart.errors import RequestError
from headstart.server import errors
from headstart.server.access import Access
from headstart.server.caller import CALLER


class Door:
    """Turns away whom `Access` does not let in; leaves in the scope who the others are."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Identify the caller of an HTTP request."""
        if scope["type"] == "http":
            try:
                scope[CALLER] = self._access.identify(scope["path"], Headers(scope=scope))
            except RequestError as error:
                await errors.response_to(Request(scope), error)(scope, receive, send)
                return
        await self._app(scope, receive, send)
