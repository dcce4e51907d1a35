"""A `KVCacheManager` that tells a sink of every call on it and of what came out.

It decides nothing: whoever drives it cannot tell it from the plain one.  Taking events decides nothing
either, so it is not recorded.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import ParamSpec, TypeVar
from weakref import ref

from headstart.cache import (
    Allocation,
    CacheConfig,
    CacheRequest,
    KVCacheManager,
    Pin,
    PrefixHit,
    PromptEmbeds,
)
from headstart.cache.whatif import WhatIf
from headstart.engine.decisions import (
    Allocate,
    BeginStep,
    Call,
    Commit,
    Fork,
    Found,
    Free,
    Gone,
    Granted,
    Lookup,
    PinCall,
    Pinned,
    Reset,
    RetainCall,
    Rollback,
    Seen,
    Sink,
    State,
    Tokens,
    Unpin,
)

P = ParamSpec("P")
T = TypeVar("T")


def steps_between_digests(num_blocks: int) -> int:
    """So many that digests, whose time grows with the pool, cost a step microseconds on average."""
    return max(256, num_blocks // 16)


@dataclass(slots=True)
class _Told:
    """A request that the sink knows, with its first ``num_tokens`` tokens."""

    number: int
    num_tokens: int


class RecordingManager(KVCacheManager):
    """Keeps the door of `KVCacheManager` and writes to ``sink`` what comes through it.

    What happens in a step is flushed when the step ends, what happens between steps at once: the death of
    the process loses no more than the step that was open.  The whole state's digest is written every
    ``digest_every`` steps (None: never) and by `close`.
    """

    def __init__(
        self,
        config: CacheConfig,
        sink: Sink,
        digest_every: int | None = None,
        *,
        what_if: WhatIf | None = None,
        epoch: int = 0,
    ) -> None:
        super().__init__(config, what_if=what_if, epoch=epoch)
        self._sink = sink
        self._digest_every = digest_every
        self._salt_key = secrets.token_bytes(16)  # never written, so that no salt can be guessed from a log
        self._told: dict[ref[CacheRequest], _Told] = {}
        self._num_told = 0
        self._num_steps = 0
        self._in_step = False

    # -- the door --------------------------------------------------------------------------------

    def begin_step(self, now: float) -> None:
        """See `KVCacheManager`, as for all of these."""
        self._in_step = True
        self._record(partial(BeginStep, now), _nothing, super().begin_step, now)

    def get_computed_blocks(self, request: CacheRequest) -> PrefixHit:
        """Recorded with what it found."""
        record = partial(Lookup, self._number(request))
        return self._record(record, _found, super().get_computed_blocks, request)

    def allocate_slots(
        self, request: CacheRequest, num_new_tokens: int, hit: PrefixHit | None = None
    ) -> Allocation | None:
        """Recorded with what it granted."""
        known = None if hit is None else hit.num_tokens
        record = partial(Allocate, self._number(request), num_new_tokens, known)
        return self._record(record, _granted, super().allocate_slots, request, num_new_tokens, hit)

    def fork(self, request: CacheRequest, child: CacheRequest) -> None:
        """Recorded with the tokens of the child that are not the request's."""
        number = self._number(request)
        record = partial(Fork, number, self._number(child, parent=request))
        self._record(record, _nothing, super().fork, request, child)

    def commit_step(self) -> None:
        """Recorded with the number of free blocks."""
        self._in_step = False
        self._record(Commit, lambda _: self.num_free_blocks, super().commit_step)
        self._count_step()

    def rollback_step(self) -> tuple[str, ...]:
        """Recorded with the requests that it undid."""
        self._in_step = False
        undone = self._record(Rollback, tuple[str, ...], super().rollback_step)
        self._count_step()
        return undone

    def free(self, request: CacheRequest) -> tuple[str, ...]:
        """Recorded with the requests that it took with it."""
        record = partial(Free, self._number(request))
        return self._record(record, tuple[str, ...], super().free, request)

    def reset_prefix_cache(self) -> bool:
        """Recorded with its success."""
        return self._record(Reset, bool, super().reset_prefix_cache)

    def pin(self, request: CacheRequest, seconds: float) -> Pin | None:
        """Recorded with what it pinned."""
        record = partial(PinCall, self._number(request), seconds)
        return self._record(record, _pinned, super().pin, request, seconds)

    def retain(self, request: CacheRequest, seconds: float, name: str | None = None) -> Pin | None:
        """Recorded with what it pinned."""
        record = partial(RetainCall, self._number(request), seconds, name)
        return self._record(record, _pinned, super().retain, request, seconds, name)

    def unpin(self, request_id: str) -> bool:
        """Recorded with its success."""
        return self._record(partial(Unpin, request_id), bool, super().unpin, request_id)

    def close(self) -> None:
        """Write the last digest and close the sink.  Calls are answered as before, and no longer recorded."""
        try:
            self._sink.write(State(self.state_digest(), closed=True))
        finally:
            self._sink.close()

    # -- records ---------------------------------------------------------------------------------

    def _record(
        self,
        record: Callable[..., Call],
        told: Callable[[T], object],
        call: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """The call's answer, once a record that ends with ``told(answer)`` is written."""
        try:
            answer = call(*args, **kwargs)
        except Exception as error:
            self._sink.write(record(type(error).__name__))
            self._sink.flush()  # it may be the last thing that this process does
            raise
        self._sink.write(record(told(answer)))
        if not self._in_step:
            self._sink.flush()
        return answer

    def _count_step(self) -> None:
        self._num_steps += 1
        if self._digest_every is not None and self._num_steps % self._digest_every == 0:
            self._sink.write(State(self.state_digest()))
            self._sink.flush()

    def _number(self, request: CacheRequest, parent: CacheRequest | None = None) -> int:
        """The request's number, once the sink knows all its tokens."""
        told = self._told.get(ref(request))
        if told is None:
            return self._introduce(request, parent)
        if told.num_tokens < request.num_tokens:
            self._sink.write(Tokens(told.number, request.token_ids(told.num_tokens)))
            told.num_tokens = request.num_tokens
        return told.number

    def _introduce(self, request: CacheRequest, parent: CacheRequest | None) -> int:
        number = self._num_told
        self._num_told += 1
        self._told[ref(request, self._forget)] = _Told(number, request.num_tokens)
        salt, adapter = request.namespace.salt, request.namespace.adapter
        above, common = None, 0
        if parent is not None:
            shared = min(parent.num_tokens, request.num_tokens)
            if parent.run(0, shared) == request.run(0, shared):
                above, common = self._told[ref(parent)].number, shared
        self._sink.write(
            Seen(
                number,
                request.request_id,
                request.token_ids(common),
                None if salt is None else self._pseudonym(salt),
                None if adapter is None else (adapter.name, adapter.digest),
                above,
                common,
                request.skip_reading,
                request.num_prompt_tokens if request.num_prompt_tokens < request.num_tokens else None,
                request.retention_priority,
                [(span.digest, span.offset, span.length) for span in request.media],
                None if request.prompt_embeds is None else _rows(request.prompt_embeds),
                request.skip_writing,
                None if request.tenant is None else self._pseudonym(request.tenant),
            )
        )
        return number

    def _forget(self, gone: ref[CacheRequest]) -> None:
        self._sink.write(Gone(self._told.pop(gone).number))

    def _pseudonym(self, salt: str) -> str:
        return blake2b(salt.encode(), key=self._salt_key, digest_size=8).hexdigest()


def _rows(embeds: PromptEmbeds) -> bytes:
    return b"".join(embeds.digest(row, row + 1) for row in range(embeds.num_rows))


def _nothing(_: None) -> None:
    return None


def _pinned(pin: Pin | None) -> Pinned | None:
    return None if pin is None else Pinned(pin.num_blocks, pin.until)


def _found(hit: PrefixHit) -> Found:
    blocks = zlib.crc32(struct.pack(f"<{len(hit.block_ids)}i", *hit.block_ids))
    if hit.copy is None:
        return Found(hit.num_tokens, blocks)
    return Found(hit.num_tokens, blocks, hit.copy.src, hit.copy.num_tokens)


def _granted(grant: Allocation | None) -> Granted | None:
    if grant is None:
        return None
    copies = [(copy.src, copy.dst, copy.num_tokens) for copy in grant.copies]
    return Granted(grant.block_ids, copies, list(grant.replaced.items()))
