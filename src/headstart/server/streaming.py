"""Work for a client that may leave at any time, and its result as server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from headstart.errors import HeadstartError
from headstart.server.errors import describe
from headstart.server.replies import Event

logger = logging.getLogger(__name__)

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


def _streamed(last: str) -> dict[int | str, dict[str, Any]]:
    return {
        200: {
            "description": f"Whole, or with ``stream`` as server-sent events{last}.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    }


STREAMED = _streamed("; the last is ``[DONE]``")
"""For the OpenAPI document of a route that can stream."""
EVENTS = _streamed(", each with its name")
"""The same, where events have names."""


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


def _as_openai_says(error: Exception) -> list[BaseModel]:
    return [describe(error)[1]]


class EventStream(StreamingResponse):
    """``chunks`` as server-sent events, one each, and ``last`` behind them.

    Owns ``chunks``: they are closed when the stream ends, the client leaves or something fails.  A failure
    after the stream began is told by the events that ``failed`` makes of it, and the stream ends there.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[BaseModel, None],
        *,
        failed: Callable[[Exception], Iterable[BaseModel]] = _as_openai_says,
        last: bytes = DONE,
    ) -> None:
        self._events = _events(chunks, failed, last)
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


async def _events(
    chunks: AsyncGenerator[BaseModel, None],
    failed: Callable[[Exception], Iterable[BaseModel]],
    last: bytes,
) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                yield _event(chunk)
        except Exception as error:
            if not isinstance(error, HeadstartError):
                logger.exception("a stream failed")
            for told in failed(error):
                yield _event(told)
        else:
            if last:
                yield last


def _event(data: BaseModel) -> bytes:
    name = f"event: {data.type}\n" if isinstance(data, Event) else ""
    return f"{name}data: {data.model_dump_json(exclude_unset=True)}\n\n".encode()


def json_response(reply: BaseModel) -> Response:
    """``reply`` without the fields nobody set."""
    return Response(reply.model_dump_json(exclude_unset=True), media_type="application/json")
