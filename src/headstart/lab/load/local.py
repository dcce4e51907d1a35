"""A headstart server of our own, for as long as something is measured on it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType

from headstart.config import SECRET_VARIABLES
from headstart.errors import EngineError
from headstart.lab.load.family import family, send

_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
_LAST_LINES = 20  # of the server's output are kept, to show why it ended


def serve_command(model: str, *options: str) -> list[str]:
    """The command that serves ``model`` on a free port of this machine, with this very Python."""
    return [sys.executable, "-m", "headstart", "serve", model, "--host", "127.0.0.1", "--port", "0", *options]


@contextmanager
def running_server(command: Sequence[str], *, start_timeout: float = 600.0) -> Iterator[str]:
    """The base URL of a server that runs until the block is left, whatever ends it.

    ``command`` must print a line with its address, ``http://127.0.0.1:PORT``, once it accepts requests.
    Raises ``EngineError`` with the server's last words if it ends before that line, or has not printed
    it after ``start_timeout`` seconds.
    """
    with running(command) as server:
        yield server.address(start_timeout)


@contextmanager
def running(command: Sequence[str]) -> Iterator[LocalProcess]:
    """A process that runs until the block is left, whatever ends it, with all that it starts.

    SIGTERM and SIGHUP end the block as Ctrl-C does (in the main thread), so that no server outlives us.
    Raises ``EngineError`` if there is no such program.
    """
    with _signals_raise():
        try:
            # A session of its own: Ctrl-C reaches us alone, and we stop the server and all its children.
            process = subprocess.Popen(  # noqa: S603 - the command is our caller's, no shell reads it
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
                # Keys in our environment are for servers that others run; ours would ask us for them.
                env={name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES},
            )
        except OSError as error:
            raise EngineError(f"{command[0]} cannot be run: {error.strerror}") from error
        server = LocalProcess(process)
        try:
            yield server
        finally:
            _stop(process)
            server.close()


class LocalProcess:
    """Reads all that a server prints, so that it never waits for us, and keeps the end of it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._found: SimpleQueue[str | None] = SimpleQueue()  # an address, or None when the output ended
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._last.append(line.rstrip())
            if found := _ADDRESS.search(line):
                self._found.put(found[0])
        self._found.put(None)

    def address(self, timeout: float) -> str:
        """The address, once it is printed."""
        try:
            address = self._found.get(timeout=timeout)
            what = "ended before it served"
        except Empty:
            address = None
            what = f"did not serve within {timeout:g} seconds"
        if address is None:
            raise EngineError(f"the server {what}: {self.last_words()}")
        return address

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone (what it started may be there still)."""
        return self._process.poll() is not None

    def last_words(self) -> str:
        """The last lines that it printed so far."""
        return "\n".join(line for line in list(self._last) if line) or "(it said nothing)"

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the process and to all that it started."""
        send(number, family(self._process.pid))

    def close(self) -> None:
        """Wait until the rest is read; the process must have ended."""
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _stop(process: subprocess.Popen[str]) -> None:
    """Ask the server to end, give it 15 seconds, then take down what is left of it and its children."""
    members = family(process.pid)
    send(signal.SIGCONT, members)  # one that is stopped would not hear us
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=15)
    send(signal.SIGKILL, [*members, *family(process.pid)])
    process.wait()


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Let the signals that would end us on the spot raise ``SystemExit`` instead."""

    def leave(signum: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
