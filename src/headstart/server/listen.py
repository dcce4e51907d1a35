"""The listening socket, and uvicorn on it from the first connection to the last answer."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from headstart.errors import ConfigError

GRACE_SECONDS = 5.0  # well within the ten that container runtimes wait before they kill


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to ``host`` and ``port`` (0: any free one), not listening yet.

    Raises `ConfigError` that says why it cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"--host {host!r} is no address: {error.strerror}") from error
    sock = socket.socket(family, kind, protocol)
    # Connections of a server that just ended linger for a minute; they must not keep its successor out.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_listen(host, port, error) from error
    return sock


def url_of(sock: socket.socket) -> str:
    """Where ``sock`` is reached, as ``http://host:port``."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpServer(uvicorn.Server):
    """Uvicorn that says when it accepts connections and ends without leaving anybody hanging.

    The first signal (`handle_exit`) stops new connections and gives running requests `GRACE_SECONDS`;
    then, or at the second signal, ``close_engine`` ends them with an error of their own.  Who runs this
    installs the signal handlers: uvicorn's own would raise the signal anew at the end and so turn a
    graceful stop into a death by signal.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        on_ready: Callable[[], None],
        close_engine: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app, lifespan="off", ws="none", log_config=None, access_log=False, server_header=False
            )
        )
        self._on_ready = on_ready
        self._close_engine = close_engine
        self._hurry = asyncio.Event()

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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, wait for running requests as long as grace lasts, end the engine."""
        ending = asyncio.create_task(self._end_engine())
        await super().shutdown(sockets)
        self._hurry.set()
        await ending

    async def _end_engine(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), GRACE_SECONDS)
        await self._close_engine()


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    match error.errno:
        case errno.EADDRINUSE:
            why = "it is in use; stop what listens there or choose another --port (0 takes any free one)"
        case errno.EACCES:
            why = "ports below 1024 are for the system's administrator; choose a higher --port"
        case errno.EADDRNOTAVAIL:
            why = "this machine does not have that address; 127.0.0.1 is local, 0.0.0.0 is all of them"
        case _:
            why = error.strerror or str(error)
    return ConfigError(f"cannot listen on port {port} of {host}: {why}")
