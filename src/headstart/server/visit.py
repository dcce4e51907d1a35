"""One HTTP request from its first byte to the last of its answer, and what it cost: for logs and traces.

A `Visit` is open as long as its request is; a `VisitRecord` is what is left of it, plain and frozen.  Neither
has a prompt, a salt or a key.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headstart.cache import MissReport
from headstart.engine.choices import leader_of
from headstart.engine.request import FinishReason
from headstart.server.errors import is_anthropic
from headstart.server.generation import Generation

REQUEST_ID_HEADER = "x-request-id"
ANTHROPIC_REQUEST_ID_HEADER = "request-id"
"""What Anthropic's clients know an answer by, on Anthropic's routes."""
_REQUEST_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
_CLIENT_CLOSED_REQUEST = 499
NO_ROUTE = "(no route)"
_MOST_WAITING = 256
"""Visits that are over and wait for their reports; an engine that died may owe some for ever."""


@dataclass(slots=True, eq=False)
class Visit:
    """A request that is being served.  ``id`` is the client's own, if it sent a usable one, or ours.

    ``began`` is in seconds of `time.perf_counter`, ``began_at`` since the epoch.
    """

    method: str = "POST"
    path: str = NO_ROUTE
    client_id: str | None = None
    traceparent: str | None = None
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    began: float = field(default_factory=time.perf_counter)
    began_at: float = field(default_factory=time.time)
    answer_id: str | None = None
    generations: list[Generation] = field(default_factory=list)
    status: int = _CLIENT_CLOSED_REQUEST
    ended: float | None = None
    reports: dict[str, MissReport] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """What the client is told in the header ``X-Request-Id``."""
        return self.client_id or self.name

    @property
    def owes_reports(self) -> bool:
        """Whether a prompt of it was answered and has not been explained yet."""
        return any(
            one.first_token_at is not None and one.request_id not in self.reports for one in self.generations
        )

    def record(self) -> VisitRecord:
        """What is left of it when it has ended."""
        assert self.ended is not None
        firsts = [one.first_token_at for one in self.generations if one.first_token_at is not None]
        return VisitRecord(
            request_id=self.id,
            method=self.method,
            path=self.path,
            status=self.status,
            answer_id=self.answer_id,
            traceparent=self.traceparent,
            began_at=self.began_at,
            seconds=self.ended - self.began,
            first_token_s=min(firsts) - self.began if firsts else None,
            prompt_tokens=sum(one.num_prompt_tokens for one in self.generations),
            cached_tokens=sum(one.num_cached_tokens for one in self.generations),
            completion_tokens=sum(one.num_completion_tokens for one in self.generations),
            finish_reasons=tuple(reason for one in self.generations for reason in one.finish_reasons),
            reports=tuple(
                self.reports[one.request_id] for one in self.generations if one.request_id in self.reports
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitRecord:
    """What became of a request.  ``answer_id`` is None where nothing was asked of the model.

    ``status`` is 499 where the client left before its answer was complete.
    """

    request_id: str
    method: str
    path: str
    status: int
    answer_id: str | None = None
    traceparent: str | None = None
    began_at: float = 0.0
    seconds: float = 0.0
    first_token_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reasons: tuple[FinishReason, ...] = ()
    reports: tuple[MissReport, ...] = ()


class Visits:
    """All open visits; ``observers`` are told of each when it is over and its misses are explained.

    Without ``explained`` none ever is, and nobody waits for that.
    """

    def __init__(self, observers: Sequence[Callable[[VisitRecord], None]], *, explained: bool) -> None:
        self._observers = tuple(observers)
        self._explained = explained
        self._by_request: dict[str, Visit] = {}
        self._waiting: dict[Visit, None] = {}  # over, but for their reports; the oldest first

    def asked(self, visit: Visit, generation: Generation, answer_id: str) -> None:
        """The visit asks this of the engine, for the answer of that id."""
        visit.answer_id = answer_id
        visit.generations.append(generation)
        self._by_request[generation.request_id] = visit

    def explained(self, report: MissReport) -> None:
        """Why a prompt missed."""
        name = leader_of(report.request_id)
        visit = self._by_request.get(name)
        if visit is not None:
            visit.reports[name] = report
            if visit in self._waiting and not visit.owes_reports:
                self._close(visit)

    def over(self, visit: Visit) -> None:
        """Its answer was sent, or nobody is left to take it."""
        visit.ended = time.perf_counter()
        self._waiting[visit] = None
        if not (self._explained and visit.owes_reports):
            self._close(visit)
        elif len(self._waiting) > _MOST_WAITING:
            self._close(next(iter(self._waiting)))

    def flush(self) -> None:
        """Nobody will be explained any more."""
        for visit in list(self._waiting):
            self._close(visit)

    def _close(self, visit: Visit) -> None:
        del self._waiting[visit]
        for generation in visit.generations:
            del self._by_request[generation.request_id]
        record = visit.record()
        visit.generations.clear()  # the web server may keep the scope, and so the visit, for a while
        for observer in self._observers:
            observer(record)


class VisitMiddleware:
    """ASGI middleware, the outermost: opens and closes a `Visit`, and tells its id in the answer."""

    def __init__(self, app: ASGIApp, visits: Visits) -> None:
        self._app = app
        self._visits = visits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        client_id = headers.get(REQUEST_ID_HEADER, "")
        visit = scope["headstart.visit"] = Visit(
            method=scope["method"],
            client_id=client_id if _REQUEST_ID.fullmatch(client_id) else None,
            traceparent=headers.get("traceparent"),
        )
        status = _CLIENT_CLOSED_REQUEST

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                headers_out = MutableHeaders(scope=message)
                headers_out[REQUEST_ID_HEADER] = visit.id
                if is_anthropic(scope["path"]):
                    headers_out[ANTHROPIC_REQUEST_ID_HEADER] = visit.id
                status = message["status"]
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                visit.status = status

        try:
            await self._app(scope, receive, told)
        finally:
            visit.path = self._route(scope)
            self._visits.over(visit)

    def _route(self, scope: Scope) -> str:
        """The path of one of our routes; what else a stranger asks for is his, and may be a secret."""
        route = scope.get("route")
        if route is not None:
            return str(route.path_format)
        known = {getattr(each, "path", None) for each in scope["app"].routes} if "app" in scope else set()
        return scope["path"] if scope["path"] in known else NO_ROUTE


def visit_of(request: Request) -> Visit:
    """The visit that the request is; one of its own where no `VisitMiddleware` is in front."""
    visit = request.scope.get("headstart.visit")
    return visit if isinstance(visit, Visit) else Visit()
