"""Work for a client that may leave at any time, and its result as server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from headstart.errors import HeadstartError
from headstart.server.errors import describe

logger = logging.getLogger(__name__)

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Whole, or with ``stream`` as server-sent events; the last is ``[DONE]``.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
"""For the OpenAPI document of a route that can stream."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled and unwound as soon as the client leaves.

    ``receive`` is the request's ASGI channel, its body already read.  Raises `ClientDisconnect` when
    the client left first, and whatever ``work`` raises.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """``chunks`` as server-sent events, one each, then ``[DONE]``.

    Owns ``chunks``: they are closed when the stream ends, the client leaves or something fails.  A
    failure after the stream began is an event with an error object, and the stream ends there.
    """

    def __init__(self, chunks: AsyncGenerator[BaseModel, None]) -> None:
        self._events = _events(chunks)
        super().__init__(
            self._events,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},  # proxies must not hold it back
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's form
        """Send the stream until it ends or the client leaves."""
        # Whoever leaves while we wait to send leaves the events suspended: they must be closed, not dropped.
        async with aclosing(self._events):
            with suppress(ClientDisconnect):
                await until_disconnect(receive, self.stream_response(send))


async def _events(chunks: AsyncGenerator[BaseModel, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                yield _event(chunk)
        except HeadstartError as error:
            yield _event(describe(error)[1])
        except Exception as error:
            logger.exception("a stream failed")
            yield _event(describe(error)[1])
        else:
            yield DONE


def _event(data: BaseModel) -> bytes:
    return f"data: {data.model_dump_json(exclude_unset=True)}\n\n".encode()


def json_response(reply: BaseModel) -> Response:
    """``reply`` without the fields nobody set."""
    return Response(reply.model_dump_json(exclude_unset=True), media_type="application/json")
