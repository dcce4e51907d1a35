"""The cache core's one door.

`KVCacheManager` is all that an engine, the lab or a test talks to.  It owns which request holds what,
the step as a transaction, and the statistics; an index (`hash` or `radix`) owns the blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

from headstart.cache.events import EventLog, KVEvent
from headstart.cache.hash_index import HashIndex
from headstart.cache.index import BlockCopy, Lease, Mark, Match, PartialBlock, PrefixIndex
from headstart.cache.keys import CacheRequest
from headstart.cache.listener import Listener
from headstart.cache.miss_log import MissLog
from headstart.cache.radix_index import RadixIndex
from headstart.cache.reasons import MissReason, MissReport
from headstart.cache.whatif import WhatIf
from headstart.config import CacheConfig
from headstart.errors import CacheError

MOST_RETAINED = 1024
"""Prefixes retained at a time: each is looked at whenever the last pinned block of a run has to go."""


@dataclass(slots=True)  # not frozen, as little is that is made for every request: it would cost more
class PrefixHit:
    """What `get_computed_blocks` found: ``num_tokens`` prompt tokens need not be computed.

    ``block_ids`` are whole blocks to share, in order; ``copy`` is the part of one more block to copy
    (radix index only), counted in ``num_tokens``.  Void after the next change of the manager.
    """

    request: CacheRequest
    num_tokens: int
    match: Match
    version: int

    @property
    def block_ids(self) -> list[int]:
        """Whole blocks to share, in order."""
        return self.match.block_ids

    @property
    def copy(self) -> PartialBlock | None:
        """The part of a further block to copy; None when there is none."""
        return self.match.copy

    def without_copy(self) -> PrefixHit:
        """The same hit without its partial block, for when there is no room to keep the source."""
        match, copied = self.match, self.match.copy
        if copied is None:
            return self
        whole = Match(match.block_ids, None, match.shared_with, match.place)
        return PrefixHit(self.request, self.num_tokens - copied.num_tokens, whole, self.version)


@dataclass(slots=True)
class Allocation:
    """What `allocate_slots` granted: fresh blocks, now at the end of the request's table.

    ``copies`` must be done before the step writes anything.  ``replaced`` maps a block that the request
    shared with a fork to the fresh one that took its place in the table, because it is about to be
    written: the only change that a table ever sees besides growth.
    """

    block_ids: list[int]
    copies: tuple[BlockCopy, ...] = ()
    replaced: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counted once per request, at its first admission; readmissions after preemption apart.

    Requests that skip reading are not counted: they ask for nothing.

    ``queries`` and ``hits`` are tokens, as in ``vllm:prefix_cache_queries`` and ``…_hits``.
    """

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned prefix: its name, how many blocks are left of it, and when its time is over (seconds).

    ``request_id`` is the id of the request that was pinned, or the name it was retained under.
    """

    request_id: str
    num_blocks: int
    until: float


@dataclass(slots=True)
class _Holding:
    """One admitted request: its blocks, and how many tokens have a slot in them."""

    lease: Lease
    num_computed: int


@dataclass(slots=True)
class _Grant:
    """What the current step has given one request, and how to take it back."""

    mark: Mark
    num_computed: int  # before the step
    admitted: bool = False  # in this step
    counted: tuple[int, int] | None = None  # the queries and hits that its admission added
    shared_with: set[str] = field(default_factory=set)  # whose pending blocks it rests on
    replaced: tuple[int, int] | None = None  # the position in the table, and the block it had before


def _demand_seconds(request: CacheRequest, seconds: float) -> None:
    if not (isfinite(seconds) and seconds > 0):
        raise CacheError(f"{request!r} must be pinned for a number of seconds above 0, not {seconds}")


def _findable(request: CacheRequest, num_tokens: int) -> int:
    """How many of its first ``num_tokens`` tokens, once computed, anybody may find."""
    return 0 if request.skip_writing else num_tokens


def _grant_state(grant: _Grant) -> tuple[object, ...]:
    mark = (grant.mark.num_blocks, grant.mark.num_published)
    return *mark, grant.num_computed, grant.admitted, grant.counted, sorted(grant.shared_with), grant.replaced


class KVCacheManager:
    """Decides which KV blocks a request reuses, takes and frees.

    A step is a transaction: blocks that its grants fill are *pending* until `commit_step` says that
    their K and V are written.  Other requests of the same step may share them; `rollback_step`, or
    freeing a request before its step committed, takes them back together with the grants that
    share them.  A lack of room is a value (None), never an exception, and changes nothing; misuse and
    broken laws raise ``CacheError``.  ``listeners`` are told of what becomes findable and what is evicted,
    ``what_if`` of that and of what requests do with it.  ``epoch`` is for events (see `EventLog`).
    """

    def __init__(
        self,
        config: CacheConfig,
        listeners: Sequence[Listener] = (),
        *,
        what_if: WhatIf | None = None,
        epoch: int = 0,
    ) -> None:
        self.config = config
        self._misses = MissLog(config) if config.explain_misses else None
        self._events = EventLog(config, epoch) if config.enable_kv_cache_events else None
        self._what_if = what_if
        own: tuple[Listener | None, ...] = (self._misses, self._events, self._what_if)
        listeners = (*listeners, *(one for one in own if one is not None))
        make_index = HashIndex if config.index == "hash" else RadixIndex
        self._index: PrefixIndex = make_index(config, listeners)
        self._holdings: dict[str, _Holding] = {}
        self._step: dict[str, _Grant] = {}  # in the order of the step's first grants
        self._version = 0  # counts changes, so that an outdated hit is noticed
        self._now = 0.0
        self._pins: dict[str, float] = {}  # name → when its time is over
        self._retained: dict[str, None] = {}  # those of them that give way, the longest retained first
        self._first_pin_ends = inf
        self._counts = [0] * 6  # the fields of `CacheStats`

    # -- lookup and allocation -------------------------------------------------------------------

    def begin_step(self, now: float) -> None:
        """Start a step at time ``now`` (seconds).  The only way time comes in."""
        if self._step:
            raise CacheError("the last step was neither committed nor rolled back")
        self._now = now
        self._index.begin_step(now)
        if now >= self._first_pin_ends:
            for request_id in [r for r, until in self._pins.items() if until <= now]:
                self._unpin(request_id)
            self._first_pin_ends = min(self._pins.values(), default=inf)
        if self._misses is not None:
            self._misses.now = now

    def get_computed_blocks(self, request: CacheRequest) -> PrefixHit:
        """The longest cached prefix, at most ``request.num_readable`` tokens.

        Changes nothing, neither recency nor reference counts.
        """
        match = Match()
        if self.config.enable_prefix_caching:
            match = self._index.match(request, request.num_readable)
        copied = match.copy.num_tokens if match.copy else 0
        num_tokens = len(match.block_ids) * self.config.block_size + copied
        return PrefixHit(request, num_tokens, match, self._version)

    def allocate_slots(
        self, request: CacheRequest, num_new_tokens: int, hit: PrefixHit | None = None
    ) -> Allocation | None:
        """Slots for the next ``num_new_tokens`` tokens, beyond those computed and those of the hit.

        A request's first call admits it, with its hit.  None, and nothing has changed, when there
        is no room.
        """
        if num_new_tokens < 1:
            raise CacheError(f"{request!r}: num_new_tokens must be at least 1, not {num_new_tokens}")
        holding = self._holding(request)
        if holding is None:
            return self._admit(request, num_new_tokens, hit)
        if hit is not None:
            raise CacheError(f"{request!r} was admitted already: a hit belongs to the first call")
        num_tokens = holding.num_computed + num_new_tokens
        missing = self._missing_blocks(request, num_tokens, holding.lease.block_ids)
        must_copy = self._writes_into_shared(holding)
        if missing + must_copy > self._index.num_free_blocks:
            return None
        if request.request_id not in self._step:
            self._step[request.request_id] = _Grant(self._index.mark(holding.lease), holding.num_computed)
        copies, replaced = self._copy_on_write(holding) if must_copy else ((), {})
        new_blocks = self._extend(holding, num_tokens, missing)
        self._took(missing + must_copy)
        return Allocation(new_blocks, copies, replaced)

    def _admit(self, request: CacheRequest, num_new_tokens: int, hit: PrefixHit | None) -> Allocation | None:
        looked = hit is not None and not request.skip_reading
        hit = hit or PrefixHit(request, 0, Match(), self._version)
        if hit.request is not request or hit.version != self._version:
            raise CacheError(f"{request!r}: the hit is another request's, or older than the last change")
        num_tokens = hit.num_tokens + num_new_tokens
        missing = self._missing_blocks(request, num_tokens, hit.block_ids)
        if missing + self._index.cost(hit.match) > self._index.num_free_blocks:
            return None
        if self._misses is not None:
            pending = bool(hit.match.shared_with)
            self._misses.admitted(
                request, hit.num_tokens, hit.block_ids, looked=looked, shares_pending=pending
            )
        lease = self._index.admit(request, hit.match)
        holding = self._holdings[request.request_id] = _Holding(lease, hit.num_tokens)
        asks = self.config.enable_prefix_caching and not request.skip_reading
        counted = (request.num_tokens, hit.num_tokens) if asks else None
        self._step[request.request_id] = _Grant(
            self._index.mark(lease), 0, True, counted, set(hit.match.shared_with)
        )
        self._count(request, counted, 1)
        request.num_admissions += 1
        new_blocks = self._extend(holding, num_tokens, missing)
        self._took(missing)
        if hit.copy is None:
            return Allocation(new_blocks)
        return Allocation(new_blocks, (BlockCopy(hit.copy.src, new_blocks[0], hit.copy.num_tokens),))

    def _holding(self, request: CacheRequest) -> _Holding | None:
        """What the very request holds; None if nothing."""
        holding = self._holdings.get(request.request_id)
        if holding is not None and holding.lease.request is not request:
            raise CacheError(f"{request!r}: another request of this id holds blocks")
        return holding

    def _missing_blocks(self, request: CacheRequest, num_tokens: int, held: list[int]) -> int:
        if num_tokens > request.num_tokens:
            raise CacheError(f"{request!r} has no {num_tokens} tokens to give slots to")
        return max(0, -(-num_tokens // self.config.block_size) - len(held))

    def _extend(self, holding: _Holding, num_tokens: int, missing: int) -> list[int]:
        """The blocks newly taken, once the holding has slots for ``num_tokens`` tokens."""
        lease = holding.lease
        held = len(lease.block_ids)
        self._index.take(lease, missing)
        rests_on = self._index.publish(lease, _findable(lease.request, num_tokens) // self.config.block_size)
        if rests_on:
            self._step[lease.request.request_id].shared_with |= rests_on
        holding.num_computed = num_tokens
        self._version += 1
        return lease.block_ids[held:]

    def _took(self, count: int) -> None:
        """A grant took so many blocks, all told."""
        if self._misses is not None:
            self._misses.took(count)

    def _count(self, request: CacheRequest, counted: tuple[int, int] | None, sign: int) -> None:
        """Add an admission to the statistics (``sign`` 1), or take it back (-1)."""
        if counted is not None:
            first = 3 if request.num_admissions > 0 else 0
            counts, (queries, hits) = self._counts, counted
            counts[first] += sign
            counts[first + 1] += sign * queries
            counts[first + 2] += sign * hits

    # -- forks -----------------------------------------------------------------------------------

    def fork(self, request: CacheRequest, child: CacheRequest) -> None:
        """Let ``child`` hold the very blocks of ``request``, with as many tokens computed.

        Neither copies nor takes anything: a block they share is copied when one of them first writes
        into it.  Not in a step that has granted ``request`` something.  The child's tokens must begin with
        the computed ones; it is not counted in the statistics.  Raises ``CacheError`` otherwise.
        """
        holding = self._holding(request)
        if holding is None or request.request_id in self._step:
            raise CacheError(f"{request!r} cannot be forked: it holds nothing, or its step is not committed")
        computed = holding.num_computed
        alike = child.begins_like(request, computed)
        if child.request_id in self._holdings or child.num_tokens < computed or not alike:
            raise CacheError(f"{child!r} is no fork of {request!r}: it must begin with its {computed} tokens")
        if request.skip_writing and not child.skip_writing:
            raise CacheError(f"{child!r} is no fork of {request!r}: it would write what that must not")
        self._holdings[child.request_id] = _Holding(self._index.fork(holding.lease, child), computed)
        child.num_admissions += 1
        child.num_committed = computed
        self._version += 1

    def _writes_into_shared(self, holding: _Holding) -> bool:
        """Whether the next token goes into a block that another table holds too, or held before this step."""
        position, offset = divmod(holding.num_computed, self.config.block_size)
        return offset > 0 and self._index.holders(holding.lease.block_ids[position]) > 1

    def _copy_on_write(self, holding: _Holding) -> tuple[tuple[BlockCopy, ...], dict[int, int]]:
        """A block of its own for the holding's partly filled one, which it lets go when the step commits."""
        position, offset = divmod(holding.num_computed, self.config.block_size)
        lease = holding.lease
        self._index.take(lease, 1)
        fresh = lease.block_ids.pop()
        shared = self._index.replace(lease, position, fresh)
        self._step[lease.request.request_id].replaced = (position, shared)
        return (BlockCopy(shared, fresh, offset),), {shared: fresh}

    # -- the end of a step -----------------------------------------------------------------------

    def commit_step(self) -> None:
        """The K and V of every token granted in this step are written."""
        self._index.commit()
        for request_id, grant in self._step.items():
            holding = self._holdings[request_id]
            request = holding.lease.request
            request.num_committed = max(request.num_committed, holding.num_computed)
            if grant.replaced is not None:
                self._index.drop(grant.replaced[1])
            if self._what_if is not None:
                self._tell_what_if(self._what_if, holding, grant)
        self._end_step()

    def _tell_what_if(self, what_if: WhatIf, holding: _Holding, grant: _Grant) -> None:
        request, hit = holding.lease.request, grant.mark.num_blocks
        if grant.admitted:
            last = holding.lease.block_ids[hit - 1] if hit else None
            counted = grant.counted if request.num_admissions == 1 else None
            what_if.admitted(request, last, counted)
        what_if.computed(request)

    def rollback_step(self) -> tuple[str, ...]:
        """Nothing of this step was written: take back every grant.

        Requests that the step admitted are no longer held, the others stand as before the step;
        returns the ids of both.  Evicted content stays lost.
        """
        undone = tuple(self._step)
        self._withdraw(set(undone))
        self._end_step()
        return undone

    def _end_step(self) -> None:
        self._step.clear()
        self._index.end_step()
        self._version += 1

    def _withdraw(self, request_ids: set[str]) -> None:
        """Take back this step's grants of these requests, the last granted first."""
        for request_id in reversed([r for r in self._step if r in request_ids]):
            grant = self._step.pop(request_id)
            holding = self._holdings[request_id]
            self._index.undo(holding.lease, grant.mark)
            if grant.replaced is not None:
                self._index.drop(self._index.replace(holding.lease, *grant.replaced))
            holding.num_computed = grant.num_computed
            if grant.admitted:
                request = holding.lease.request
                request.num_admissions -= 1
                self._count(request, grant.counted, -1)
                if self._misses is not None:
                    self._misses.withdrawn(request)
                self._index.release(holding.lease, 0)
                del self._holdings[request_id]
        self._version += 1

    # -- giving back -----------------------------------------------------------------------------

    def free(self, request: CacheRequest) -> tuple[str, ...]:
        """Give the request's blocks back; what is committed stays findable.

        Before its step committed, this step's grants are withdrawn, its own and those of the requests
        that share its pending blocks: returns the latter's ids.  Those that the step admitted are no
        longer held.  Raises ``CacheError`` for a request that holds nothing.
        """
        request_id = request.request_id
        if self._holding(request) is None:
            raise CacheError(f"{request!r} holds no blocks: never admitted, or freed already")
        withdrawn = [request_id] if request_id in self._step else []
        for gone in withdrawn:  # grows on the way: sharing is followed through
            withdrawn += [
                other
                for other, grant in self._step.items()
                if gone in grant.shared_with and other not in withdrawn
            ]
        if withdrawn:
            self._withdraw(set(withdrawn))
        holding = self._holdings.pop(request_id, None)
        if holding is not None:
            if self._misses is not None:
                self._misses.ended(request, holding.num_computed, holding.lease.block_ids)
            self._index.release(holding.lease, _findable(request, holding.num_computed))
            if self._what_if is not None:
                self._what_if.freed(request)
        self._version += 1
        return tuple(withdrawn[1:])

    def reset_prefix_cache(self) -> bool:
        """Forget everything cached.  False, and nothing has changed, while any block is in use."""
        if self.num_free_blocks < self.config.num_blocks:
            return False
        self._index.clear()
        self._pins.clear()
        self._retained.clear()
        self._first_pin_ends = inf
        self._version += 1
        return True

    # -- pins ------------------------------------------------------------------------------------

    def pin(self, request: CacheRequest, seconds: float) -> Pin | None:
        """Keep what is cached now of the request's tokens for ``seconds``: it is evicted after all else.

        Whole, committed blocks of its namespace, whoever computed them; the request need not be admitted, and
        a second pin of its id takes the place of the first.  A pin reserves nothing: where only pinned
        blocks are left, they go.  None, and nothing has changed, if that would pin more than
        ``max_pinned_share`` of the pool.
        """
        _demand_seconds(request, seconds)
        if not self._index.pin(request.request_id, request, self._most_pinned):
            return None
        self._retained.pop(request.request_id, None)
        return self._pinned(request.request_id, seconds)

    def retain(self, request: CacheRequest, seconds: float, name: str | None = None) -> Pin | None:
        """A pin for whoever asks: where there is no room for it, those retained longest ago are let go.

        It takes the place of what ``name`` (None: the request's id) had before.  All that is pinned and
        retained together is at most ``max_pinned_share`` of the pool, and at most ``MOST_RETAINED`` prefixes
        are retained; what `pin` holds never gives way.  None if nothing of the request can be kept.
        """
        _demand_seconds(request, seconds)
        name = request.request_id if name is None else name
        if not 0 < request.num_tokens // self.config.block_size <= self._most_pinned:
            return None
        while not self._index.pin(name, request, self._most_pinned):
            oldest = name if name in self._retained else next(iter(self._retained), None)
            if oldest is None:
                return None
            self._unpin(oldest)
        pin = self._pinned(name, seconds)
        self._retained.pop(name, None)
        self._retained[name] = None
        if len(self._retained) > MOST_RETAINED:
            self._unpin(next(iter(self._retained)))
        if not pin.num_blocks:
            self._unpin(name)
            return None
        return pin

    @property
    def _most_pinned(self) -> int:
        return int(self.config.max_pinned_share * self.config.num_blocks)

    def _pinned(self, name: str, seconds: float) -> Pin:
        """The index has pinned it: note until when."""
        until = self._now + seconds
        self._pins.pop(name, None)
        self._pins[name] = until
        self._first_pin_ends = min(self._first_pin_ends, until)
        self._version += 1
        return Pin(name, self._index.num_pinned_blocks(name), until)

    def unpin(self, request_id: str) -> bool:
        """Let go what was pinned for the id, as if it had just been used; False if nothing (any more) was."""
        known = request_id in self._pins
        if known:
            self._unpin(request_id)
        return known

    def _unpin(self, name: str) -> None:
        del self._pins[name]
        self._retained.pop(name, None)
        self._index.unpin(name)
        self._version += 1

    @property
    def pins(self) -> tuple[Pin, ...]:
        """What is pinned, in the order of pinning."""
        return tuple(
            Pin(request_id, self._index.num_pinned_blocks(request_id), until)
            for request_id, until in self._pins.items()
        )

    # -- misses ----------------------------------------------------------------------------------

    def explain_misses(self, requests: Iterable[CacheRequest] = ()) -> list[MissReport]:
        """Why the prompt tokens of these requests missed, at their first admission; decides nothing.

        For requests whose first token was sent, so that what other namespaces hold cannot be timed.  Those
        that never were admitted, and forks, have no report.  To be called after every step, also for nobody:
        then the hashing that it is about is done little by little.  None without ``explain_misses``.
        """
        return [] if self._misses is None else self._misses.reports(requests)

    @property
    def miss_tokens(self) -> dict[MissReason, int]:
        """Missed prompt tokens by reason, where there are any, of all requests explained since the start."""
        tokens = {} if self._misses is None else self._misses.tokens
        return {reason: count for reason, count in tokens.items() if count}

    # -- events ----------------------------------------------------------------------------------

    def take_events(self) -> list[KVEvent]:
        """What became findable or stopped being so since the last call; empty if events are off."""
        return [] if self._events is None else self._events.take()

    # -- looking ---------------------------------------------------------------------------------

    def block_table(self, request_id: str) -> list[int]:
        """The request's blocks in order (a copy).  Raises ``CacheError`` if it holds none."""
        holding = self._holdings.get(request_id)
        if holding is None:
            raise CacheError(f"request {request_id!r} holds no blocks")
        return list(holding.lease.block_ids)

    def free_block_ids(self, request: CacheRequest | None = None) -> list[int]:
        """Every block that can be had, the next victim first.

        Where tenants have shares that depends on who takes them: ``request``; None is somebody who never has
        more than a share.
        """
        return self._index.free_block_ids(request)

    @property
    def num_free_blocks(self) -> int:
        """How many blocks can be had: unused ones, and cached ones that nothing holds."""
        return self._index.num_free_blocks

    @property
    def usage(self) -> float:
        """The share of blocks in use, 0 to 1."""
        return 1.0 - self._index.num_free_blocks / self.config.num_blocks

    @property
    def stats(self) -> CacheStats:
        """What was asked and hit since the start."""
        return CacheStats(*self._counts)

    @property
    def hit_rate_estimates(self) -> dict[str, float]:
        """The token hit rate at "0.5x", "1x" … the capacity, as `WhatIf.rates`; empty if none watches."""
        return {} if self._what_if is None else self._what_if.rates()

    @property
    def num_evicted_blocks(self) -> int:
        """How many cached blocks were given up for their slots since the start."""
        return self._index.num_evicted_blocks

    @property
    def num_collisions(self) -> int:
        """How many requests met other content under a digest of theirs since the start; none ever hit it."""
        return self._index.num_collisions

    def state_digest(self) -> str:
        """32 hex digits for the whole state: what is cached in which block, who holds it, what goes next.

        Equal histories give equal digests, in any process, whatever their salts are called.  O(pool).
        """
        digest = hashlib.blake2b(digest_size=16)
        leases = [holding.lease for holding in self._holdings.values()]
        held = [
            (request_id, holding.num_computed, holding.lease.request.num_admissions)
            for request_id, holding in self._holdings.items()
        ]
        own = (float(self._now), self.stats, held, [(r, *_grant_state(g)) for r, g in self._step.items()])
        pins: list[object] = [sorted(self._pins.items())] if self._pins else []
        pins += [list(self._retained)] if self._retained else []
        for part in (own, *pins, self._index.free_block_ids(), *self._index.state(leases)):
            digest.update(part if isinstance(part, bytes) else repr(part).encode())
        return digest.hexdigest()

    def check(self) -> None:
        """Prove the laws of docs/invariants.md.  Raises ``CacheError`` with the law and the numbers.

        O(pool): for tests and idle moments, not for every step of a server.
        """
        kept = [grant.replaced[1] for grant in self._step.values() if grant.replaced is not None]
        self._index.check([holding.lease for holding in self._holdings.values()], kept)
        if self._misses is not None:
            self._misses.check()
        size = self.config.block_size
        for request_id, holding in self._holdings.items():
            blocks, computed = len(holding.lease.block_ids), holding.num_computed
            if blocks != -(-computed // size):
                raise CacheError(f"law I3: {request_id!r} holds {blocks} blocks for {computed} tokens")
        free = self._index.free_block_ids()
        if len(free) != len(set(free)) or len(free) != self._index.num_free_blocks:
            raise CacheError(f"law I1: {len(free)} free blocks listed, {self._index.num_free_blocks} counted")
        for request_id in self._step:
            if request_id not in self._holdings:
                raise CacheError(f"law I4: the step knows {request_id!r}, which holds nothing")
