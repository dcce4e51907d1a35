"""A decision log replayed: a fresh core is asked what the engine's core was asked, and must answer the same.

Law I9 made into a tool.  What is compared is each call's answer (the very blocks), and the whole state
wherever the log has its digest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from headstart.cache import (
    Adapter,
    CacheConfig,
    CacheRequest,
    CacheStats,
    KVCacheManager,
    MediaSpan,
    Namespace,
    PrefixHit,
    PromptEmbeds,
)
from headstart.engine.decisions import (
    Allocate,
    BeginStep,
    Call,
    Commit,
    Fork,
    Free,
    Gone,
    Lookup,
    PinCall,
    Record,
    Reset,
    RetainCall,
    Rollback,
    Seen,
    State,
    Tokens,
    Unpin,
)
from headstart.engine.recording import RecordingManager
from headstart.errors import HeadstartError, LogError
from headstart.lab.decisions.reader import LogReader

DIGEST_BYTES = 32
"""Bytes that stand for one row of embeddings in a log."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the replayed core first answered otherwise: the ``call``-th call, in the ``step``-th step.

    ``expected`` and ``got`` are the record in the log and that of the replay, as the log's JSON.
    """

    step: int
    call: int
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a replay went through, as far as it came.

    ``problem`` is the sentence that ended it early: a damaged log, or a law that is broken.  ``closed``:
    the log has an end.  ``digest`` is the replayed core's state at last.
    """

    num_steps: int
    num_calls: int
    num_requests: int
    num_digests: int
    num_evicted_blocks: int
    stats: CacheStats
    digest: str
    closed: bool
    difference: Difference | None = None
    problem: str | None = None

    @property
    def agrees(self) -> bool:
        """Whether all of the log was replayed, and came out the same."""
        return self.difference is None and self.problem is None


class _Last:
    """A `Sink` that keeps the last call's record."""

    def __init__(self) -> None:
        self.call: Call | None = None

    def write(self, record: Record) -> None:
        if isinstance(record, Call):
            self.call = record

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class Replay:
    """A core of its own, to which a log's records are given one by one."""

    def __init__(self, cache: CacheConfig) -> None:
        self._last = _Last()
        silent = replace(cache, enable_kv_cache_events=False)  # nobody would take them
        self._manager = RecordingManager(silent, self._last)
        self._requests: dict[int, CacheRequest] = {}
        self._hits: dict[int, PrefixHit] = {}
        self._num_requests = self._num_steps = self._num_calls = self._num_digests = 0
        self._closed = False

    @property
    def manager(self) -> KVCacheManager:
        """The replayed core."""
        return self._manager

    def apply(self, record: Record) -> Difference | None:
        """Do what the record says; where its answer is another, both.

        Raises ``LogError`` for a record that no engine writes.
        """
        got: Record = record
        match record:
            case Seen():
                self._meet(record)
            case Tokens(number, tokens):
                self._request(number).tokens += CacheRequest("", tokens).tokens
            case Gone(number):
                self._hits.pop(number, None)
                self._requests.pop(number, None)
            case State():
                self._num_digests += 1
                self._closed = record.closed
                got = State(self._manager.state_digest(), record.closed)
            case _:
                got = self._call(record)
        if got == record:
            return None
        return Difference(self._num_steps, self._num_calls, _line(record), _line(got))

    def outcome(self, difference: Difference | None = None, problem: str | None = None) -> Outcome:
        """What has been gone through so far."""
        manager = self._manager
        return Outcome(
            self._num_steps,
            self._num_calls,
            self._num_requests,
            self._num_digests,
            manager.num_evicted_blocks,
            manager.stats,
            manager.state_digest(),
            self._closed,
            difference,
            problem,
        )

    def _call(self, record: Call) -> Call:
        """The record of the same call on our core."""
        self._num_calls += 1
        self._num_steps += isinstance(record, BeginStep)
        ask = self._question(record)
        with suppress(Exception):  # the manager has recorded its name, as the engine's did
            ask()
        assert self._last.call is not None
        return self._last.call

    def _question(self, record: Call) -> Callable[[], object]:
        manager = self._manager
        match record:
            case BeginStep(now):
                return partial(manager.begin_step, now)
            case Lookup(number):
                return partial(self._look_up, number, self._request(number))
            case Allocate(number, count, hit):
                request = self._request(number)
                return partial(manager.allocate_slots, request, count, self._hit(number, hit))
            case Fork(number, child):
                return partial(manager.fork, self._request(number), self._request(child))
            case Commit():
                return manager.commit_step
            case Rollback():
                return manager.rollback_step
            case Free(number):
                return partial(manager.free, self._request(number))
            case Reset():
                return manager.reset_prefix_cache
            case PinCall(number, seconds):
                return partial(manager.pin, self._request(number), seconds)
            case RetainCall(number, seconds, name):
                return partial(manager.retain, self._request(number), seconds, name)
            case Unpin(request_id):
                return partial(manager.unpin, request_id)

    def _meet(self, record: Seen) -> None:
        tokens = CacheRequest(record.request_id, record.tokens).tokens
        if record.parent is not None:
            tokens[:0] = self._request(record.parent).run(0, record.common)
        adapter = None if record.adapter is None else Adapter(*record.adapter)
        namespace = Namespace(adapter, record.salt)
        rows = record.prompt_embeds
        self._requests[record.number] = CacheRequest(
            record.request_id,
            tokens,
            namespace=namespace,
            media=[MediaSpan(*span) for span in record.media],
            prompt_embeds=None if rows is None else PromptEmbeds(rows, len(rows) // DIGEST_BYTES),
            skip_reading=record.skip_reading,
            skip_writing=record.skip_writing,
            num_prompt_tokens=record.num_prompt_tokens,
            retention_priority=record.retention_priority,
            tenant=record.tenant,
        )
        self._num_requests += 1

    def _request(self, number: int) -> CacheRequest:
        request = self._requests.get(number)
        if request is None:
            raise LogError(f"call {self._num_calls:,} is about request {number}, which the log does not have")
        return request

    def _look_up(self, number: int, request: CacheRequest) -> None:
        self._hits[number] = self._manager.get_computed_blocks(request)

    def _hit(self, number: int, num_tokens: int | None) -> PrefixHit | None:
        """The request's last hit, whole or without its copy, as the number of tokens says."""
        if num_tokens is None:
            return None
        found = self._hits.get(number)
        for hit in () if found is None else (found, found.without_copy()):
            if hit.num_tokens == num_tokens:
                return hit
        raise LogError(f"call {self._num_calls:,} brings a hit of {num_tokens} tokens, which no lookup found")


def replay(
    reader: LogReader, *, check: bool = False, progress: Callable[[int], None] | None = None
) -> Outcome:
    """Replay a log up to its end or to the first difference.

    ``check`` proves the laws of docs/invariants.md after every step.  ``progress`` is told now and then how
    many bytes of the file have been read.
    """
    core = Replay(reader.header.cache)
    told = 0
    try:
        for record in reader.records():
            difference = core.apply(record)
            if difference is not None:
                return core.outcome(difference)
            if check and isinstance(record, Commit | Rollback):
                core.manager.check()
            if progress is not None and reader.num_read != told:
                told = reader.num_read
                progress(told)
    except HeadstartError as error:
        return core.outcome(problem=str(error))
    return core.outcome()


def _line(record: Record) -> str:
    return msgspec.json.encode(record).decode()
