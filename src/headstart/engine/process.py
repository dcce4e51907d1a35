"""The engine in a process of its own: ``python -m headstart.engine.process ADDRESS``.

It connects to the front's socket, is told its configuration, and then steps as long as there is
work, reading messages between steps, so that an abort frees its blocks before the next step is
planned.  It ends with the front: standard input is a pipe that nobody writes to, and closes when the
front is gone, however it went.
"""

from __future__ import annotations

import logging
import os
import signal
import sys

import msgspec
import zmq

from headstart.config import EngineConfig
from headstart.engine.choices import choice_ids
from headstart.engine.core import EngineCore
from headstart.engine.messages import (
    Abort,
    Explained,
    FromEngine,
    Planned,
    ResetDone,
    ResetPrefixCache,
    Shutdown,
    StartFailed,
    StepOutputs,
    Submit,
    ToEngine,
)
from headstart.engine.request import RequestOutput
from headstart.errors import HeadstartError, RequestError

logger = logging.getLogger(__name__)


class EngineServer:
    """Joins one `EngineCore` to one socket.

    ``front`` is a file descriptor that becomes readable when the front is gone.
    """

    def __init__(self, core: EngineCore, socket: zmq.Socket[bytes], front: int) -> None:
        self._core = core
        self._socket = socket
        self._front = front
        self._poller = _poller(socket, front)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._refused: list[RequestOutput] = []
        self._told = (0, 0)  # running and waiting, as last published

    def serve(self) -> None:
        """Work until told to stop or until the front is gone."""
        while self._take_messages(wait=not self._core.has_work):
            if self._core.has_work:
                self._publish(self._core.step(planned=self._tell_changes))
                reports = self._core.explain()
                if reports:
                    self._send(Explained(tuple(reports), self._core.stats()))

    def _tell_changes(self) -> None:
        stats = self._core.stats()
        if (stats.num_running, stats.num_waiting) != self._told:
            self._send(Planned(stats))

    def _take_messages(self, *, wait: bool) -> bool:
        """Handle what has arrived, waiting for something first if asked to.  False: stop."""
        ready = dict(self._poller.poll(None if wait else 0))
        if self._front in ready:
            return False
        changed = False
        while self._socket.poll(0):
            try:
                message = self._decoder.decode(self._socket.recv())
            except (msgspec.DecodeError, RequestError) as error:
                # The front checks what it sends, so this is a fault of ours; the others' work goes on.
                logger.error("a message from the front cannot be read and is ignored: %s", error)
                continue
            if isinstance(message, Shutdown):
                return False
            self._handle(message)
            changed = True
        if self._refused or (changed and not self._core.has_work):
            self._publish(self._refused)
            self._refused = []
        return True

    def _handle(self, message: Submit | Abort | ResetPrefixCache) -> None:
        if isinstance(message, Abort):
            for request_id in message.request_ids:
                self._core.abort(request_id)
        elif isinstance(message, ResetPrefixCache):
            self._send(ResetDone(message.call_id, self._core.reset_prefix_cache()))
        else:
            try:
                self._core.add_request(
                    message.request_id,
                    message.prompt,
                    message.params,
                    terms=message.terms,
                    priority=message.priority,
                )
            except RequestError as error:  # the front checks first; this is for a front that did not
                self._refused += [
                    RequestOutput(name, finish_reason="error", error=str(error))
                    for name in choice_ids(message.request_id, message.params.num_choices)
                ]

    def _publish(self, outputs: list[RequestOutput]) -> None:
        stats = self._core.stats()
        self._told = (stats.num_running, stats.num_waiting)
        self._send(StepOutputs(tuple(outputs), stats))

    def _send(self, message: FromEngine) -> None:
        self._socket.send(self._encoder.encode(message))


def main(address: str) -> int:
    """Run one engine against the socket at ``address``; returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s engine: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the front's to handle: it asks for the end
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.connect(address)
    try:
        return _run(socket, sys.stdin.fileno())
    except Exception:
        logger.exception("the engine cannot go on")
        return 1
    finally:
        context.destroy(linger=0)  # else it would wait for a front that is gone to read what it was sent


def _run(socket: zmq.Socket[bytes], front: int) -> int:
    if front in dict(_poller(socket, front).poll()):
        return 1  # it was gone before it said a word
    config = msgspec.msgpack.decode(socket.recv(), type=EngineConfig)
    try:
        from headstart.engine.build import build_engine  # torch: imported late, so that errors can be told

        core, info = build_engine(config)
    except HeadstartError as error:
        socket.send(msgspec.msgpack.encode(StartFailed(str(error), type(error).__name__)))
        os.read(front, 1)  # until the front has read it and hangs up: it must not see us end before that
        return 1
    socket.send(msgspec.msgpack.encode(info))
    EngineServer(core, socket, front).serve()
    return 0


def _poller(socket: zmq.Socket[bytes], front: int) -> zmq.Poller:
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(front, zmq.POLLIN)
    return poller


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)  # nothing is left to save; tearing torch down takes a second that a restart would wait for
