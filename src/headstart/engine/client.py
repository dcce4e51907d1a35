"""The front's side of the engine process: start it, send requests, read tokens.  Imports no torch."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import sys
import tempfile
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from headstart.config import EngineConfig
from headstart.engine.limits import Limits
from headstart.engine.messages import (
    Abort,
    EngineInfo,
    EngineStats,
    FromEngine,
    ResetDone,
    ResetPrefixCache,
    Shutdown,
    StartFailed,
    StepOutputs,
    Submit,
    ToEngine,
)
from headstart.engine.request import RequestOutput, SamplingParams
from headstart.errors import EngineDeadError, EngineError, ModelError, RequestError

logger = logging.getLogger(__name__)

_SHUTDOWN_GRACE_S = 5.0


class EngineClient:
    """One engine process and the requests in flight in it.

    ``info`` says what the engine is (after `start`); ``stats`` is its last report.
    """

    info: EngineInfo

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.stats = EngineStats()
        self._context = zmq.asyncio.Context()
        self._directory = Path(tempfile.mkdtemp(prefix="headstart-"))  # mode 700: the socket is ours alone
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # no bound, so that sending never waits
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._queues: dict[str, asyncio.Queue[RequestOutput | None]] = {}  # None: the engine is gone
        self._answers: dict[int, asyncio.Future[Any]] = {}  # awaited by calls; 0 is `start`
        self._calls = itertools.count()
        self._limits: Limits | None = None
        self._death: str | None = None  # a sentence without its full stop

    async def start(self) -> EngineInfo:
        """Start the engine and wait until it is ready.  If it fails, nothing is left behind.

        Raises ``ModelError`` with the engine's own sentence, or ``EngineDeadError`` if it dies on the way.
        """
        try:
            self.info = await self._call(self._launch)
        except BaseException:
            await self.shutdown()
            raise
        self._limits = Limits(
            self.info.max_model_len, self.info.vocab_size, self.info.num_blocks, self.info.block_size
        )
        return self.info
