"""Two applications of one server, told apart by the port that a request came in at."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send


@dataclass(frozen=True, slots=True)
class ByPort:
    """ASGI: what comes in at ``admin_port`` goes to ``admin``, all else to ``public``.

    The port is that of the socket, which no header of the request can change.
    """

    public: ASGIApp
    admin: ASGIApp
    admin_port: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on."""
        _, port = scope.get("server") or (None, None)
        app = self.admin if port == self.admin_port else self.public
        await app(scope, receive, send)
