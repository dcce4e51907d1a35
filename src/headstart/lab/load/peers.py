"""Servers on one machine that are measured by turns: while one runs, the others are stopped.

A server that waits for requests is not idle: it may poll, collect garbage or spin in a thread pool, and
takes time from the one that is measured.  So all but one get SIGSTOP.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from headstart.errors import ConfigError, EngineError
from headstart.lab.load.client import NotReadyError, Server, connect
from headstart.lab.load.local import LocalProcess, running

_PAUSE_SECONDS = 0.5  # between two questions whether a server answers


@dataclass(frozen=True, slots=True)
class Entrant:
    """A name, and either a command that serves on port ``{port}`` or the URL of a server that runs."""

    name: str
    command: tuple[str, ...] = ()
    base_url: str = ""

    @classmethod
    def parse(cls, text: str) -> Entrant:
        """``NAME=COMMAND`` or ``NAME=URL``.  Raises ``ConfigError``."""
        name, _, how = (part.strip() for part in text.partition("="))
        if not name or not how:
            raise ConfigError(f"a server is NAME=COMMAND or NAME=URL, not {text!r}")
        if how.startswith(("http://", "https://")):
            return cls(name, base_url=how)
        if "{port}" not in how:
            raise ConfigError(f"the command of {name} must say where {{port}} goes: {how}")
        return cls(name, command=tuple(shlex.split(how)))


class Peer:
    """A server that takes part.  One that we did not start has no ``process`` and is never stopped."""

    def __init__(self, name: str, base_url: str, process: LocalProcess | None = None) -> None:
        self.name = name
        self.base_url = base_url
        self._process = process

    @property
    def can_pause(self) -> bool:
        """Whether it is stopped while others are measured."""
        return self._process is not None

    def pause(self) -> None:
        """Stop it and all its processes where they are."""
        if self._process:
            self._process.signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        if self._process:
            self._process.signal_all(signal.SIGCONT)

    def check(self) -> None:
        """Raise ``EngineError`` if its process has ended."""
        if self._process and self._process.has_ended:
            raise EngineError(f"{self.name} ended: {self._process.last_words()}")


@contextmanager
def taking_part(entrant: Entrant, prompt: Sequence[int], *, start_timeout: float = 1200.0) -> Iterator[Peer]:
    """The entrant's server, started if it is ours to start, seen to answer ``prompt``, and paused.

    What was started ends with the block.  Raises ``EngineError`` for a server that does not come up.
    """
    if not entrant.command:
        peer = Peer(entrant.name, entrant.base_url)
        asyncio.run(_until_it_answers(peer, prompt, timeout=0.0))
        yield peer
        return
    port = str(_free_port())
    with running([word.replace("{port}", port) for word in entrant.command]) as process:
        peer = Peer(entrant.name, f"http://127.0.0.1:{port}", process)
        asyncio.run(_until_it_answers(peer, prompt, timeout=start_timeout))
        peer.pause()
        yield peer


@asynccontextmanager
async def awake(peer: Peer, prompt: Sequence[int]) -> AsyncIterator[Server]:
    """A connection to the peer, resumed and seen to answer ``prompt``; paused again after the block."""
    peer.resume()
    try:
        await _until_it_answers(peer, prompt, timeout=60.0)
        async with connect(peer.base_url, ignore_eos=True) as server:
            yield server
    finally:
        peer.pause()


async def _until_it_answers(peer: Peer, prompt: Sequence[int], *, timeout: float) -> None:
    """Ask for one token until it comes: that the port is open says little about the engine behind it."""
    deadline = time.monotonic() + timeout
    while True:
        peer.check()
        try:
            async with connect(peer.base_url, ignore_eos=True) as server:
                await server.complete(prompt, 1)
                return
        except NotReadyError as error:
            if time.monotonic() > deadline:
                raise EngineError(f"{peer.name} does not answer: {error}") from error
        await asyncio.sleep(_PAUSE_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
