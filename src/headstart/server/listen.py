"""The listening socket, and uvicorn on it from the first connection to the last answer."""

from __future__ import annotations

import asyncio
import errno
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from headstart.errors import ConfigError, RequestError
from headstart.server.errors import describe

GRACE_SECONDS = 5.0  # well within the ten that container runtimes wait before they kill
LAST_WORDS_SECONDS = 1.0  # for the errors of requests that grace did not suffice for
HEADER_SECONDS = 30.0  # from one answer, or the connection's beginning, to the next request's headers
MAX_DESCRIPTORS = 65_536
UNREAD_SECONDS = 60  # of not taking an answer that is there for it, after which a client counts as gone


def bind(host: str, port: int, *, kind: str = "") -> socket.socket:
    """A socket bound to ``host`` and ``port`` (0: any free one), not listening yet.

    Raises `ConfigError` that says why it cannot be had; ``kind`` is what the options' names begin with
    ("admin-" for --admin-port).
    """
    try:
        family, type_, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"--{kind}host {host!r} is no address: {error.strerror}") from error
    sock = _Listener(family, type_, protocol)
    # Connections of a server that just ended linger for a minute; they must not keep its successor out.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Both pass on to accepted connections: what nobody reads, and clients that vanished without a word.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_SECONDS * 1000)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_listen(host, port, error, kind) from error
    return sock


class _Listener(socket.socket):
    """A listening socket for asyncio, which goes on accepting even when there are no descriptors left.

    It says so, puts the next try off for a second, and then tries some thousand times more, each time to say
    so and to put it off.  Here the second of these tries ends it.
    """

    _exhausted = False

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection."""
        if self._exhausted:
            self._exhausted = False
            raise BlockingIOError
        try:
            return super().accept()
        except OSError as error:
            self._exhausted = error.errno in (errno.EMFILE, errno.ENFILE)
            raise


def allow_connections() -> None:
    """Raise this process's bound on open descriptors, each connection being one, as far as it may be.

    The usual 1,024 is there for programs that use ``select``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def url_of(sock: socket.socket) -> str:
    """Where ``sock`` is reached, as ``http://host:port``."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Protocol(H11Protocol):
    """Uvicorn's HTTP/1.1, whichever others are installed; it says in JSON what is wrong with a request."""

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP, or its headers are too long: nothing that follows would make sense."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # what the app has to say to it is not sent any more
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer is under way already
            self.transport.abort()
            return
        message = f"{msg.rstrip('.').lower()}: it is no HTTP/1.1, or its headers are too long"
        _, reply = describe(RequestError(message, code="invalid_http"))
        head = [(b"content-type", b"application/json"), (b"connection", b"close")]
        for event in (
            h11.Response(status_code=400, headers=head, reason=b"Bad Request"),
            h11.Data(data=reply.model_dump_json().encode()),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class HttpServer(uvicorn.Server):
    """Uvicorn that says when it accepts connections, waits for nobody forever and leaves nobody hanging.

    Who takes longer than `HEADER_SECONDS` to ask for something is hung up on.

    The first signal (`handle_exit`) stops new connections and gives running requests ``grace_s`` seconds;
    then, or at the second signal, ``close_engine`` ends them with an error of their own; connections that
    are left after that are cut.  Who runs this installs the signal handlers: uvicorn's own would raise the
    signal anew at the end and so turn a graceful stop into a death by signal.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        on_ready: Callable[[], None],
        close_engine: Callable[[], Awaitable[None]],
        grace_s: float = GRACE_SECONDS,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=_Protocol,
                lifespan="on",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
            )
        )
        self._on_ready = on_ready
        self._close_engine = close_engine
        self._grace_s = grace_s
        self._hurry = asyncio.Event()
        self._asking: dict[tuple[_Protocol, Any], float] = {}  # since when, by connection and last request

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the caller."""
        yield

    def handle_exit(self, sig: int, frame: FrameType | None = None) -> None:  # noqa: ARG002 - uvicorn's form
        """Begin to stop; called again, stop now."""
        if self.should_exit:
            self._hurry.set()
        self.should_exit = True

    def handle_signals(self) -> None:
        """Stop at SIGINT and SIGTERM, in place of whatever was done at them before."""
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(sig, self.handle_exit, sig)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen.  Raises `ConfigError` if another process began to since `bind`."""
        try:
            await super().startup(sockets)
        except OSError as error:
            host, port = sockets[0].getsockname()[:2] if sockets else ("", 0)
            raise _cannot_listen(host, port, error) from error
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """Uvicorn's, ten times a second; hangs up on whoever does not come to the point."""
        now = asyncio.get_running_loop().time()
        self._asking = {
            (each, each.cycle): self._asking.get((each, each.cycle), now)
            for each in self.server_state.connections
            if isinstance(each, _Protocol) and (each.cycle is None or each.cycle.response_complete)
        }
        for (connection, _), since in self._asking.items():
            if now - since > HEADER_SECONDS:
                connection.transport.close()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, wait for running requests as long as grace lasts, end the engine."""
        closing = asyncio.create_task(super().shutdown(sockets))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((closing, hurry), timeout=self._grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        await self._close_engine()
        await asyncio.wait((closing,), timeout=LAST_WORDS_SECONDS)
        for connection in self.server_state.connections:  # of clients that neither send nor read
            connection.transport.abort()
        await closing


def _cannot_listen(host: str, port: int, error: OSError, kind: str = "") -> ConfigError:
    match error.errno:
        case errno.EADDRINUSE:
            why = (
                f"it is in use; stop what listens there or choose another --{kind}port (0 takes any free one)"
            )
        case errno.EACCES:
            why = f"ports below 1024 are for the system's administrator; choose a higher --{kind}port"
        case errno.EADDRNOTAVAIL:
            why = "this machine does not have that address; 127.0.0.1 is local, 0.0.0.0 is all of them"
        case _:
            why = error.strerror or str(error)
    return ConfigError(f"cannot listen on port {port} of {host}: {why}")
