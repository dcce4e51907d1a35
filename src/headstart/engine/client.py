"""The front's side of the engine process: start it, send requests, read tokens.  Imports no torch."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
import tempfile
import time
import weakref
from array import array
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress

import msgspec
import zmq
import zmq.asyncio

from headstart import errors
from headstart.cache import MissReport
from headstart.config import EngineConfig
from headstart.engine.choices import choice_ids
from headstart.engine.limits import Limits
from headstart.engine.messages import (
    Abort,
    EngineInfo,
    EngineStats,
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
from headstart.engine.request import PLAIN_TERMS, CacheTerms, RequestOutput, SamplingParams
from headstart.errors import EngineDeadError, EngineError, HeadstartError, RequestError

logger = logging.getLogger(__name__)

_SHUTDOWN_GRACE_S = 5.0

_ALLOCATION = {
    "GLIBC_TUNABLES": ":".join(
        (
            "glibc.malloc.hugetlb=1",
            f"glibc.malloc.mmap_threshold={16 << 20}",
            f"glibc.malloc.trim_threshold={64 << 20}",
        )
    )
}
"""For glibc's allocator, where the user has not set it: large pages, since weights and cached keys are read
from end to end in every step; and a fixed border between heap and mappings, which glibc else moves up with
what is freed, until large temporaries lie scattered in a heap that cannot shrink."""


class EngineClient:
    """One engine process and the requests in flight in it.

    ``info`` says what the engine is (after `start`); ``stats`` is its last report.  ``on_explained`` is told
    why each prompt missed, shortly after its first token.
    """

    info: EngineInfo

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.stats = EngineStats()
        self.on_explained: Callable[[MissReport], object] = _ignore
        self._directory = tempfile.TemporaryDirectory(prefix="headstart-")  # mode 700: the socket is ours
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # no bound, so that sending never waits
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ready: asyncio.Future[EngineInfo] | None = None
        self._queues: dict[str, asyncio.Queue[RequestOutput | None]] = {}  # None: the engine is gone
        # By ticket: id and choices of requests taken on whose first output nobody asked for yet.
        self._seats: dict[int, tuple[str, int]] = {}
        self._tickets = itertools.count()
        self._in_flight: set[str] = set()  # ids of requests, seated or running
        self._resets: dict[int, asyncio.Future[bool]] = {}
        self._calls = itertools.count()
        self._limits: Limits | None = None
        self._death: str | None = None  # what happened, if it is gone
        self._gone = asyncio.Event()
        self._heard = 0.0  # when it last said something, or was first asked to

    async def start(self) -> EngineInfo:
        """Start the engine and wait until it is ready.  If that fails, nothing is left behind.

        Raises what the engine raised (``ModelError``, ``ConfigError``, ``EngineError``) with its own
        sentence, or ``EngineDeadError`` if it dies on the way.
        """
        try:
            self.info = info = await self._launch()
        except BaseException:
            await self.shutdown()
            raise
        self._limits = Limits(
            info.max_model_len,
            info.vocab_size,
            info.num_blocks,
            info.block_size,
            priorities=info.scheduling_policy == "priority",
        )
        return info

    async def _launch(self) -> EngineInfo:
        address = f"ipc://{self._directory.name}/engine.sock"
        self._socket.bind(address)
        process = await self._spawn(address)
        self._ready = asyncio.get_running_loop().create_future()
        self._send(self._config)  # is kept until the engine has connected
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch(process))]
        info = await self._ready
        self._directory.cleanup()  # they are connected; should we be killed, nothing is left of it
        return info

    async def _spawn(self, address: str) -> asyncio.subprocess.Process:
        spawning = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # a file called random.py where the user happens to stand is not ours to import
                "-m",
                "headstart.engine.process",
                address,
                stdin=asyncio.subprocess.PIPE,  # held open for as long as we live: see process.py
                start_new_session=True,  # Ctrl-C in the terminal reaches the front alone
                env=_ALLOCATION | os.environ,
            )
        )
        try:
            self._process = await asyncio.shield(spawning)
        except asyncio.CancelledError:
            self._process = await spawning  # whoever gives up must still be able to end it
            raise
        return self._process

    @property
    def is_alive(self) -> bool:
        """Whether the engine process runs."""
        return self._limits is not None and self._death is None

    @property
    def silence_s(self) -> float:
        """How many seconds the engine has said nothing while requests wait for it; 0 while none do."""
        return time.monotonic() - self._heard if self._queues else 0.0

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        terms: CacheTerms = PLAIN_TERMS,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of all choices (`choice_ids`) as steps bring them; each one's last has a ``finish_reason``.

        ``request_id`` names the request on the wire; no other in flight may have it.

        Raises ``RequestError`` at once (before the first ``await``) for what can never be served:
        too long, a token outside the vocabulary, more blocks than the pool has; and as `check_queue`.  It
        counts as in flight from now on, until the iterator ends, is closed or forgotten.  The iterator raises
        ``EngineError``, or ``EngineDeadError`` if the process is gone.  Closing or cancelling it early
        aborts the request; `abort` ends one of its choices.
        """
        if request_id in self._in_flight:
            raise RequestError(
                f"the request id {request_id!r} is in use: a request of that id is still being answered",
                param="request_id",
                code="request_id_in_use",
                status=409,
            )
        self._check_alive().check(prompt_token_ids, params, priority)
        self.check_queue(params)
        try:  # what the engine could not read would get no answer
            msgspec.convert(msgspec.to_builtins(params), SamplingParams)
        except msgspec.ValidationError as error:
            raise RequestError(f"sampling parameters: {error}", code="invalid_value") from error
        submit = Submit(request_id, _wire_tokens(prompt_token_ids), params, terms, priority)
        ticket = next(self._tickets)
        stream = self._stream(submit, ticket)
        # Nothing of a generator runs, its ``finally`` neither, when it is closed before it was begun.
        weakref.finalize(stream, self._unseat, ticket).atexit = False
        self._seats[ticket] = request_id, params.num_choices
        self._in_flight.add(request_id)
        return stream

    def _unseat(self, ticket: int) -> None:
        """Nobody will ask for this request's first output any more, if nobody has."""
        if seat := self._seats.pop(ticket, None):
            self._in_flight.discard(seat[0])

    def check_queue(self, params: SamplingParams, num_prompts: int = 1) -> None:
        """Raises ``RequestError`` unless so many prompts more may be taken on; each choice counts as one.

        With status 429 while too many requests are in flight, with 400 for more than could ever be.
        """
        bound = self.info.max_queued_requests
        if bound is None:
            return
        each, running = params.num_choices, self.info.max_num_seqs
        wanted, most = num_prompts * each, running + bound
        if wanted > most:
            what, param = f"{each} choices of a prompt", "n" if params.best_of is None else "best_of"
            if num_prompts > 1:
                with_choices = "" if each == 1 else f" with {each} choices each"
                what, param = f"{num_prompts} prompts{with_choices}", "prompt"
            raise RequestError(
                f"{what} count as {wanted} requests, but this server takes on at most {most} at a time; "
                "ask for fewer",
                param=param,
                code="invalid_value",
            )
        if len(self._queues) + sum(count for _, count in self._seats.values()) + wanted > most:
            raise RequestError(
                f"this server takes on at most {most} requests at a time ({running} that run and {bound} "
                f"that wait), and there is no room for {wanted} more; please try again later",
                code="queue_full",
                status=429,
            )

    async def _stream(self, submit: Submit, ticket: int) -> AsyncGenerator[RequestOutput, None]:
        del self._seats[ticket]  # this runs when the first output is asked for; now it is in the queues
        running = set(choice_ids(submit.request_id, submit.params.num_choices))
        try:
            self._check_alive()
            if not self._queues:
                self._heard = time.monotonic()
            queue: asyncio.Queue[RequestOutput | None] = asyncio.Queue()
            self._queues.update(dict.fromkeys(running, queue))
            self._send(submit)
            while running:
                output = await queue.get()
                if output is None:
                    raise EngineDeadError(f"{self._death}; the request was lost, please try again")
                if output.finish_reason is not None:
                    running.discard(output.request_id)
                    self._queues.pop(output.request_id, None)
                if output.error is not None:
                    raise EngineError(output.error)
                yield output
        finally:
            left = [name for name in running if self._queues.pop(name, None) is not None]
            if left and self._death is None:
                self._send(Abort(tuple(left)))
            self._in_flight.discard(submit.request_id)

    def abort(self, request_id: str) -> None:
        """End one choice of what `generate` runs, whose last output says so; nothing if it has ended."""
        queue = self._queues.pop(request_id, None)
        if queue is not None:
            queue.put_nowait(RequestOutput(request_id, finish_reason="abort"))
            if self._death is None:
                self._send(Abort((request_id,)))

    async def reset_prefix_cache(self) -> bool:
        """Forget everything cached; False (and nothing changed) while blocks are in use."""
        self._check_alive()
        call_id = next(self._calls)
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._resets[call_id] = done
        try:
            self._send(ResetPrefixCache(call_id))
            return await done
        finally:
            del self._resets[call_id]

    async def died(self) -> str:
        """Wait until the engine serves no more; a sentence without its full stop says why."""
        await self._gone.wait()
        assert self._death is not None
        return self._death

    async def shutdown(self) -> None:
        """End the engine process and wait for it; requests in flight fail.  Harmless when repeated."""
        self._fail_all("the server is shutting down")
        process = self._process
        if process is not None and process.returncode is None:
            self._send(Shutdown())
            if process.stdin is not None:
                process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), _SHUTDOWN_GRACE_S)
            except TimeoutError:
                with suppress(ProcessLookupError):  # it ended just now
                    process.kill()
                await process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._context.destroy(linger=0)
        self._directory.cleanup()

    def _check_alive(self) -> Limits:
        if self._death is not None:
            raise EngineDeadError(self._death)
        if self._limits is None:
            raise EngineDeadError("the engine was not started")
        return self._limits

    # -- the wire --------------------------------------------------------------------------------

    def _send(self, message: ToEngine | EngineConfig) -> None:
        self._socket.send(self._encoder.encode(message))  # unbounded, so it is on its way when this returns

    async def _receive(self) -> None:
        try:
            while True:
                data = await self._socket.recv()
                self._heard = time.monotonic()
                self._take(
                    self._decoder.decode(data)
                )  # no name for it: what was answered is not kept meanwhile
        except Exception:  # whatever it is, nobody may be left waiting
            logger.exception("the engine's messages cannot be read any more")
            self._fail_all("the engine's messages cannot be read any more")

    def _take(self, message: FromEngine) -> None:
        match message:
            case StepOutputs():
                self.stats = message.stats
                for output in message.outputs:
                    queue = self._queues.get(output.request_id)
                    if queue is not None:  # otherwise its reader has just left, and its abort is on the way
                        queue.put_nowait(output)
            case Explained():
                self.stats = message.stats
                for report in message.reports:
                    self.on_explained(report)
            case Planned():
                self.stats = message.stats
            case ResetDone():
                done = self._resets.get(message.call_id)
                if done is not None and not done.done():  # as above
                    done.set_result(message.success)
            case StartFailed():
                self._fail_all(message.error, getattr(errors, message.kind, EngineError))
            case EngineInfo():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(message)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._fail_all(f"the engine {how}")

    def _fail_all(self, death: str, kind: type[HeadstartError] = EngineDeadError) -> None:
        """Tell everybody who waits, the first time that it is called."""
        if self._death is not None:
            return
        self._death = death
        self._gone.set()
        for queue in self._queues.values():
            queue.put_nowait(None)
        for done in (self._ready, *self._resets.values()):
            if done is not None and not done.done():
                done.set_exception(kind(death))


def _ignore(_: MissReport) -> None:
    pass


def _wire_tokens(token_ids: Sequence[int]) -> bytes:
    tokens = array("i", token_ids)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()
