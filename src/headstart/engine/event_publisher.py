"""KV events out of the engine's process, over ZeroMQ, as vLLM publishes them.

A PUB socket sends each batch as three frames: topic, number (8 bytes, big-endian), payload.  A ROUTER socket
answers a request, which is the number to start from, with the batches that it still has, (number, payload)
each, and ends with the number -1 and no payload.

The engine's thread only encodes, and puts a batch into a queue between two sockets; another thread sends.
Neither ever waits for anybody: what finds a queue full is dropped, and its number is missing.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from threading import Thread

import zmq

from headstart.cache.events import AllBlocksCleared, KVEvent
from headstart.config import KVEventsConfig
from headstart.engine.event_wire import encode
from headstart.errors import ConfigError

logger = logging.getLogger(__name__)

INT_HASHES = "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"
"""The environment variable that says whether hashes are sent as numbers (1, as if not set) or whole (0)."""
_END = (-1).to_bytes(8, "big", signed=True)
_QUEUE = "inproc://batches"
_STOP_S, _LINGER_MS = 2.0, 500
"""How long an end waits for the thread, and for the sockets to send what they have."""


class ZmqPublisher:
    """An `EventPublisher`, whose first batch says that ``epoch`` begins with nothing cached.

    So followers forget what was before.  ``endpoint`` and ``replay_endpoint`` are where its sockets are.
    Raises ``ConfigError`` where one of them cannot be had.
    """

    def __init__(self, config: KVEventsConfig, epoch: int, *, int_hashes: bool = True) -> None:
        self.num_dropped = 0
        self._int_hashes = int_hashes
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            pub = self._context.socket(zmq.PUB)
            pub.setsockopt(zmq.SNDHWM, config.hwm)
            self.endpoint = _place(pub, config.endpoint, "endpoint", bind=_is_ours(config.endpoint))
            replay: zmq.Socket[bytes] | None = None
            self.replay_endpoint: str | None = None
            if config.replay_endpoint is not None:
                replay = self._context.socket(zmq.ROUTER)
                replay.setsockopt(zmq.SNDHWM, config.buffer_steps + 1)  # one whole answer
                self.replay_endpoint = _place(replay, config.replay_endpoint, "replay_endpoint", bind=True)
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self._queue = self._context.socket(zmq.PUSH)
        self._queue.setsockopt(zmq.SNDHWM, config.max_queue_size)
        self._queue.bind(_QUEUE)
        batches = self._context.socket(zmq.PULL)
        batches.setsockopt(zmq.RCVHWM, 1)
        batches.connect(_QUEUE)
        sender = _Sender(batches, pub, replay, config.topic.encode(), config.buffer_steps)
        self._thread = Thread(target=sender.run, name="kv-events", daemon=True)
        self._thread.start()
        self.publish([AllBlocksCleared(epoch, epoch)])

    def publish(self, events: Sequence[KVEvent]) -> None:
        """Send one batch under its own ``sequence``, or drop it if the queue is full."""
        payload = encode(events, ts=time.time(), int_hashes=self._int_hashes)
        try:
            self._queue.send_multipart([events[0].sequence.to_bytes(8, "big"), payload], zmq.NOBLOCK)
        except zmq.ZMQError:  # full, or closed
            self.num_dropped += 1

    def close(self) -> None:
        """Send what is queued and end; within seconds, whoever does not read.  Harmless when repeated."""
        if self._queue.closed:
            return
        self._queue.setsockopt(zmq.SNDTIMEO, int(_STOP_S * 1000))
        try:
            self._queue.send(b"")
            self._thread.join(_STOP_S)
        except zmq.Again:  # the thread is lost; so are its sockets
            logger.warning("KV events: the thread that sends them does not answer")
        self._queue.close(linger=0)
        if not self._thread.is_alive():
            self._context.term()


class _Sender:
    """The thread's side: it alone touches these sockets."""

    def __init__(
        self,
        batches: zmq.Socket[bytes],
        pub: zmq.Socket[bytes],
        replay: zmq.Socket[bytes] | None,
        topic: bytes,
        buffer_steps: int,
    ) -> None:
        self._batches = batches
        self._pub = pub
        self._replay = replay
        self._topic = topic
        self._sent: deque[tuple[bytes, bytes]] = deque(maxlen=buffer_steps)

    def run(self) -> None:
        """Until an empty message comes."""
        sockets = [socket for socket in (self._batches, self._pub, self._replay) if socket is not None]
        poller = zmq.Poller()
        for socket in sockets:
            if socket is not self._pub:
                poller.register(socket, zmq.POLLIN)
        try:
            while self._send_all():  # first: whoever knows of a batch must find it in a replay
                self._answer()
                poller.poll()
        except Exception:
            logger.exception("KV events are not published any more")
        finally:
            for socket in sockets:
                socket.close(linger=_LINGER_MS)

    def _send_all(self) -> bool:
        """Send what is queued.  False: the end."""
        while True:
            try:
                frames = self._batches.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            if frames == [b""]:
                return False
            number, payload = frames
            self._pub.send_multipart([self._topic, number, payload])  # never waits: PUB drops
            self._sent.append((number, payload))

    def _answer(self) -> None:
        """Answer one request for a replay, if there is any."""
        if self._replay is None:
            return
        try:
            *sender, start = self._replay.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        if len(start) != 8 or not 1 <= len(sender) <= 2:  # an identity, and REQ's empty frame
            logger.warning("KV events: a replay is asked for with 8 bytes, not with %d", len(start))
            return
        for number, payload in self._sent:
            if number >= start:  # big-endian, so in the order of numbers
                self._replay.send_multipart([*sender, number, payload])
        self._replay.send_multipart([*sender, _END, b""])


def open_publisher(config: KVEventsConfig, epoch: int) -> ZmqPublisher | None:
    """What the configuration asks for; None if nothing is to be published.  Raises ``ConfigError``."""
    if not config.enable_kv_cache_events or config.publisher == "null":
        return None
    chosen = os.environ.get(INT_HASHES, "1")
    if chosen not in ("0", "1"):
        raise ConfigError(f"the environment variable {INT_HASHES} must be 0 or 1, not {chosen!r}")
    return ZmqPublisher(config, epoch, int_hashes=chosen == "1")


def _is_ours(endpoint: str) -> bool:
    """Whether the socket is bound there, as vLLM decides it, rather than connected."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith("ipc://")


def _place(socket: zmq.Socket[bytes], endpoint: str, name: str, *, bind: bool) -> str:
    """Bind or connect; the address, with the port that a wildcard became."""
    if "[" in endpoint or "::" in endpoint:
        socket.setsockopt(zmq.IPV6, 1)
    try:
        if not bind:
            socket.connect(endpoint)
            return endpoint
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(f"kv_events_config: {name} {endpoint} cannot be used: {error.strerror}") from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
