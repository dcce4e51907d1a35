"""``GET /docs``: the routes on one page that needs no network but this server's.

FastAPI's own pages load their scripts from a CDN, which a server in a closed network does not reach.
"""

from __future__ import annotations

from importlib import resources

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

POLICY = (
    "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page may talk to this server and to nobody else, whatever is written in it."""


def router() -> APIRouter:
    """The page, which reads ``/openapi.json``."""
    routes = APIRouter()
    page = resources.files("headstart.server").joinpath("docs.html").read_text(encoding="utf-8")

    @routes.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """The page as it lies in the package."""
        return HTMLResponse(page, headers={"Content-Security-Policy": POLICY})

    return routes
