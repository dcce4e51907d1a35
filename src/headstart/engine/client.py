"""The front's side of the engine process: start it, send requests, read tokens.  Imports no torch."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sys
import tempfile
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path

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
from headstart.errors import EngineDeadError, EngineError, ModelError

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
        self._queues: dict[str, asyncio.Queue[RequestOutput | EngineError]] = {}
        self._resets: dict[int, asyncio.Future[bool]] = {}
        self._calls = itertools.count()
        self._limits: Limits | None = None
        self._death: EngineDeadError | None = None

    async def start(self) -> EngineInfo:
        """Start the engine and wait until it is ready.

        Raises ``ModelError`` with the engine's own sentence, or ``EngineDeadError`` if it dies on the way.
        """
        address = f"ipc://{self._directory / 'engine.sock'}"
        self._socket.bind(address)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headstart.engine.process",
            address,
            stdin=asyncio.subprocess.PIPE,  # held open for as long as we live: see process.py
            start_new_session=True,  # Ctrl-C in the terminal reaches the front alone
        )
        await self._socket.send(self._encoder.encode(self._config))
        ready = asyncio.ensure_future(self._socket.recv())
        ended = asyncio.ensure_future(self._process.wait())
        await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not ready.done():
            ready.cancel()
            await self.shutdown()
            raise EngineDeadError(
                f"the engine ended while starting, with exit code {self._process.returncode}"
            )
        message = self._decoder.decode(ready.result())
        if isinstance(message, StartFailed):
            await self.shutdown()
            raise ModelError(message.error)
        if not isinstance(message, EngineInfo):
            raise EngineError(f"the engine began with a {type(message).__name__}")
        self.info = message
        self._limits = Limits(
            message.max_model_len, message.vocab_size, message.num_blocks, message.block_size
        )
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]
        return message

    @property
    def is_alive(self) -> bool:
        """Whether the engine process runs."""
        return self._limits is not None and self._death is None

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as steps bring them; the last one has a ``finish_reason``.

        Raises ``RequestError`` at once (before the first ``await``) for what can never be served:
        too long, a token outside the vocabulary, more blocks than the pool has.  The iterator raises
        ``EngineError``, or ``EngineDeadError`` if the process is gone.  Closing or cancelling it early
        aborts the request.
        """
        if self._death is not None:
            raise self._death
        if self._limits is None:
            raise EngineDeadError("the engine was not started")
        self._limits.check(prompt_token_ids, params)
        return self._stream(Submit(request_id, _wire_tokens(prompt_token_ids), params, cache_salt))

    async def _stream(self, submit: Submit) -> AsyncGenerator[RequestOutput, None]:
        queue: asyncio.Queue[RequestOutput | EngineError] = asyncio.Queue()
        self._queues[submit.request_id] = queue
        running = True
        try:
            self._send(submit)
            while running:
                output = await queue.get()
                if isinstance(output, EngineError):
                    running = False
                    raise output
                running = output.finish_reason is None
                if output.error is not None:
                    raise EngineError(output.error)
                yield output
        finally:
            del self._queues[submit.request_id]
            if running and self._death is None:
                self._send(Abort((submit.request_id,)))

    async def reset_prefix_cache(self) -> bool:
        """Forget everything cached; False (and nothing changed) while blocks are in use."""
        if self._death is not None:
            raise self._death
        call_id = next(self._calls)
        done = self._resets[call_id] = asyncio.get_running_loop().create_future()
        self._send(ResetPrefixCache(call_id))
        return bool(await done)

    async def shutdown(self) -> None:
        """End the engine process and wait for it; requests in flight fail."""
        process = self._process
        if process is not None and process.returncode is None:
            self._send(Shutdown())
            if process.stdin is not None:
                process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), _SHUTDOWN_GRACE_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        self._fail_all(EngineDeadError("the server is shutting down"))
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        self._context.destroy(linger=0)
        shutil.rmtree(self._directory, ignore_errors=True)

    # -- the wire --------------------------------------------------------------------------------

    def _send(self, message: ToEngine) -> None:
        self._socket.send(self._encoder.encode(message))  # unbounded, so it is on its way when this returns

    async def _receive(self) -> None:
        while True:
            message = self._decoder.decode(await self._socket.recv())
            if isinstance(message, StepOutputs):
                self.stats = message.stats
                for output in message.outputs:
                    queue = self._queues.get(output.request_id)
                    if queue is not None:  # otherwise its reader has just left, and its abort is on the way
                        queue.put_nowait(output)
            elif isinstance(message, ResetDone):
                self._resets.pop(message.call_id).set_result(message.success)

    async def _watch(self) -> None:
        assert self._process is not None
        code = await self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._fail_all(EngineDeadError(f"the engine {how}; the request was lost, please try again"))

    def _fail_all(self, death: EngineDeadError) -> None:
        self._death = self._death or death
        for queue in self._queues.values():
            queue.put_nowait(self._death)
        for done in self._resets.values():
            done.set_exception(self._death)
        self._resets.clear()


def _wire_tokens(token_ids: Sequence[int]) -> bytes:
    tokens = array("i", token_ids)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()
