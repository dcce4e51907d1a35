"""Stateful property tests of the cache core, both indexes, against an oracle that stores whole token lists.

The oracle knows nothing of trees and digests.  It keeps what every slot of every block would hold
if a model ran: the namespace and the entire token list up to that slot.  A hit is right if every slot
it hands out holds exactly the request's own prefix; it is complete if no longer one could be had.
Requests that skip reading, and preempted ones that come back, are among those it sees.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager, Namespace
from headstart.cache.events import EventReplica, ReplicaBlock
from headstart.cache.hashing import block_hash_chain
from tests.cache.follower import Follower


@cache
def chain_of(namespace: Namespace, tokens: tuple[int, ...], size: int) -> list[bytes]:
    extra = [namespace.extra_keys(index) for index in range(len(tokens) // size)]
    return block_hash_chain(tokens, block_size=size, extra_keys=extra)


Content = tuple[Namespace, tuple[int, ...]]
GARBAGE = "never written"
EXAMPLES = int(os.environ.get("HEADSTART_FUZZ_EXAMPLES", "150"))


@dataclass
class Live:
    """A request that holds blocks."""

    request: CacheRequest
    computed: int
    asked: int  # tokens it had when it was admitted, and how many were a hit; 0 if that is not counted
    hit: int
    before: int | None = None  # tokens computed before the open step granted something; None: nothing yet
    admitted_now: bool = False
    replaced: int | None = None  # the block that its table lost in the open step, held until the step ends
    writes: dict[tuple[int, int], Content] = field(default_factory=dict)
    copies: dict[tuple[int, int], object] = field(default_factory=dict)


@dataclass(frozen=True)
class Cached:
    """A block that should be findable: the prefix before it and the tokens in it."""

    namespace: Namespace
    parent: tuple[int, ...]
    tokens: tuple[int, ...]


class CacheMachine(RuleBasedStateMachine):
    index = "radix"
    free_order = "reverse"

    @initialize(num_blocks=st.integers(3, 14), block_size=st.integers(1, 4))
    def make(self, num_blocks: int, block_size: int) -> None:
        self.size = block_size
        self.follower = Follower(block_size)
        self.manager = KVCacheManager(
            CacheConfig(
                num_blocks=num_blocks,
                block_size=block_size,
                index=self.index,
                free_order=self.free_order,
                enable_kv_cache_events=True,
            ),
            listeners=[self.follower],
        )
        self.replica = EventReplica()
        self.num_blocks = num_blocks
        self.slots: list[list[object]] = [[GARBAGE] * block_size for _ in range(num_blocks)]
        self.live: dict[str, Live] = {}
        self.cached: dict[int, Cached] = {}  # in the order of publication
        self.pending: dict[int, str] = {}
        self.committed: dict[str, int] = {}  # of requests that skip reading: tokens once computed for them
        self.parted: list[CacheRequest] = []  # preempted: they hold nothing and may come back
        self.counter = 0
        self.queries = self.hits = 0
        self.open = False

    # -- the oracle ------------------------------------------------------------------------------

    def content(self, request: CacheRequest, position: int) -> Content:
        return request.namespace, tuple(request.token_ids(0, position + 1))

    def expected_hit(self, request: CacheRequest) -> int:
        tokens, size = tuple(request.token_ids()), self.size
        limit = len(tokens) - 1
        if request.skip_reading:
            limit = min(limit, self.committed.get(request.request_id, 0))
        full = {(c.namespace, c.parent + c.tokens) for c in self.cached.values() if len(c.tokens) == size}
        hit = 0
        while hit + size <= limit and (request.namespace, tokens[: hit + size]) in full:
            hit += size
        if self.index == "hash":
            return hit
        rest = tokens[hit:limit]
        best = 0
        for block_id, cached in self.cached.items():
            if block_id in self.pending or (cached.namespace, cached.parent) != (
                request.namespace,
                tokens[:hit],
            ):
                continue
            common = 0
            while common < min(len(rest), len(cached.tokens)) and rest[common] == cached.tokens[common]:
                common += 1
            best = max(best, common)
        return hit + best

    def is_cached(self, entry: Cached) -> bool:
        """Whether some cached block holds at least these tokens behind the same prefix."""
        count = len(entry.tokens)
        return any(
            (c.namespace, c.parent, c.tokens[:count]) == (entry.namespace, entry.parent, entry.tokens)
            for c in self.cached.values()
        )

    def publish(self, live: Live) -> None:
        request, size = live.request, self.size
        for index, block_id in enumerate(self.manager.block_table(request.request_id)):
            stop = (index + 1) * size
            if stop > live.computed or block_id in self.cached:
                continue
            entry = Cached(
                request.namespace,
                tuple(request.token_ids(0, stop - size)),
                tuple(request.token_ids(stop - size, stop)),
            )
            if self.index == "radix" and self.is_cached(entry):
                continue  # a repeat stays private
            self.cached[block_id] = entry
            self.pending[block_id] = request.request_id

    def drop_covered(self) -> None:
        for block_id, entry in list(self.cached.items()):
            if len(entry.tokens) < self.size:
                del self.cached[block_id]
                if not self.is_cached(entry):
                    self.cached[block_id] = entry

    def granted(self, live: Live, block_ids: list[int], copies: tuple, start: int, count: int) -> None:
        for block_id in block_ids:
            self.cached.pop(block_id, None)
        table = self.manager.block_table(live.request.request_id)
        for copy in copies:
            self.cached.pop(copy.dst, None)
            assert copy.dst in table
            for offset in range(copy.num_tokens):
                live.copies[copy.dst, offset] = self.slots[copy.src][offset]
                assert self.slots[copy.src][offset] == self.content(
                    live.request, start - copy.num_tokens + offset
                )
        for position in range(start, start + count):
            live.writes[table[position // self.size], position % self.size] = self.content(
                live.request, position
            )
        live.computed = start + count
        self.publish(live)

    def during_step(self) -> list[list[object]]:
        """The slots as this step's attention sees them: copies first, then all writes of the step."""
        slots = [list(block) for block in self.slots]
        for live in self.live.values():
            for (block_id, offset), value in live.copies.items():
                slots[block_id][offset] = value
        for live in self.live.values():
            for (block_id, offset), value in live.writes.items():
                slots[block_id][offset] = value
        return slots

    def take_back(self, request_id: str) -> None:
        """The open step's grants to this request are withdrawn; what it may have written is garbage."""
        live = self.live[request_id]
        for block_id, offset in [*live.writes, *live.copies]:
            self.slots[block_id][offset] = GARBAGE
        for block_id, owner in list(self.pending.items()):
            if owner == request_id:
                del self.pending[block_id]
                self.cached.pop(block_id, None)
        if live.admitted_now:  # its admission counts no more
            self.queries -= live.asked
            self.hits -= live.hit
            del self.live[request_id]
        else:
            assert live.before is not None
            live.computed, live.before = live.before, None
            live.writes, live.copies, live.replaced = {}, {}, None

    # -- rules -----------------------------------------------------------------------------------

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14),
        salt=st.sampled_from([None, None, "a", "b"]),
        chunk=st.integers(1, 14),
        blind=st.integers(0, 9),
        keep_copy=st.booleans(),
        skip_reading=st.sampled_from([False, False, True]),
    )
    def admit(
        self,
        tokens: list[int],
        salt: str | None,
        chunk: int,
        blind: int,
        keep_copy: bool,
        skip_reading: bool,
    ) -> None:
        self.counter += 1
        request = CacheRequest(
            f"r{self.counter}", tokens, namespace=Namespace(salt=salt), skip_reading=skip_reading
        )
        self.let_in(request, chunk, blind, keep_copy, counts=not skip_reading)

    @precondition(lambda self: self.parted)
    @rule(data=st.data(), chunk=st.integers(1, 14), blind=st.integers(0, 9), keep_copy=st.booleans())
    def readmit(self, data: st.DataObject, chunk: int, blind: int, keep_copy: bool) -> None:
        request = self.parted.pop(data.draw(st.integers(0, len(self.parted) - 1)))
        self.let_in(request, chunk, blind, keep_copy, counts=False)

    def let_in(self, request: CacheRequest, chunk: int, blind: int, keep_copy: bool, *, counts: bool) -> None:
        tokens = request.token_ids()
        free = self.manager.free_block_ids()
        hit = self.manager.get_computed_blocks(request)
        assert self.manager.free_block_ids() == free
        assert hit.num_tokens == self.expected_hit(request) < len(tokens)
        if not keep_copy:
            hit = hit.without_copy()
        if blind == 0:  # some callers admit without looking first
            hit = None
        seen = hit.num_tokens if hit else 0
        shared = set(hit.block_ids) if hit else set()
        if hit and hit.copy:
            shared.add(hit.copy.src)
        count = min(chunk, len(tokens) - seen)
        tables = {name: self.manager.block_table(name) for name in self.live}
        stats = self.manager.stats
        grant = self.manager.allocate_slots(request, count, hit)
        needed = -(-(seen + count) // self.size) - (len(hit.block_ids) if hit else 0)
        available = [block_id for block_id in free if block_id not in shared]
        if grant is None:
            assert needed > len(available)
            assert self.manager.free_block_ids() == free
            assert tables == {name: self.manager.block_table(name) for name in self.live}
            assert self.manager.stats == stats
            return
        assert grant.block_ids == available[:needed]
        live = self.live[request.request_id] = Live(
            request, seen, counts * len(tokens), counts * seen, before=0, admitted_now=True
        )
        slots = self.during_step()
        table = self.manager.block_table(request.request_id)
        whole = len(hit.block_ids) * self.size if hit else 0
        for position in range(whole):
            assert slots[table[position // self.size]][position % self.size] == self.content(
                request, position
            )
        self.granted(live, grant.block_ids, grant.copies, seen, count)
        self.queries, self.hits = self.queries + counts * len(tokens), self.hits + counts * seen
        self.open = True

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(0, 1), chunk=st.integers(1, 6))
    def extend(self, data: st.DataObject, token: int, chunk: int) -> None:
        live = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        if live.computed == live.request.num_tokens:
            live.request.append(token)
        count = min(chunk, live.request.num_tokens - live.computed)
        free = self.manager.free_block_ids()
        table = self.manager.block_table(live.request.request_id)
        position, offset = divmod(live.computed, self.size)
        holders = 0
        if offset:
            holders = sum(table[position] in self.manager.block_table(name) for name in self.live)
            holders += sum(other.replaced == table[position] for other in self.live.values())
        grant = self.manager.allocate_slots(live.request, count)
        needed = max(0, -(-(live.computed + count) // self.size) - len(table))
        if grant is None:
            assert needed + (holders > 1) > len(free)
            assert self.manager.free_block_ids() == free
            assert self.manager.block_table(live.request.request_id) == table
            return
        assert len(grant.replaced) == len(grant.copies) == (holders > 1)
        if grant.replaced:
            assert grant.replaced == {table[position]: free[0]}
            live.replaced = table[position]
            table[position] = free.pop(0)
        assert grant.block_ids == free[:needed]
        assert self.manager.block_table(live.request.request_id) == table + grant.block_ids
        if live.before is None:
            live.before = live.computed
        self.granted(live, grant.block_ids, grant.copies, live.computed, count)
        self.open = True

    @precondition(lambda self: any(live.before is None for live in self.live.values()))
    @rule(data=st.data(), token=st.integers(0, 1))
    def fork(self, data: st.DataObject, token: int) -> None:
        name = data.draw(st.sampled_from(sorted(n for n, live in self.live.items() if live.before is None)))
        live = self.live[name]
        self.counter += 1
        tokens = [*live.request.token_ids(0, live.computed), token]
        child = CacheRequest(
            f"r{self.counter}",
            tokens,
            namespace=live.request.namespace,
            skip_reading=live.request.skip_reading,
        )
        free, table = self.manager.free_block_ids(), self.manager.block_table(name)
        self.manager.fork(live.request, child)
        assert self.manager.free_block_ids() == free
        assert self.manager.block_table(child.request_id) == table
        self.live[child.request_id] = Live(child, live.computed, 0, 0)
        self.committed[child.request_id] = live.computed

    @precondition(lambda self: self.open)
    @rule()
    def commit(self) -> None:
        self.slots = self.during_step()
        self.manager.commit_step()
        for name, live in self.live.items():
            self.committed[name] = max(self.committed.get(name, 0), live.computed)
            live.writes, live.copies, live.before, live.admitted_now, live.replaced = (
                {},
                {},
                None,
                False,
                None,
            )
        self.pending.clear()
        self.drop_covered()
        self.open = False

    @precondition(lambda self: self.open)
    @rule()
    def rollback(self) -> None:
        undone = self.manager.rollback_step()
        assert set(undone) == {name for name, live in self.live.items() if live.before is not None}
        for name in undone:
            self.take_back(name)
        self.drop_covered()
        self.open = False

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        live = self.live[name]
        in_step = live.before is not None
        computed = live.computed if not in_step else live.before
        table = self.manager.block_table(name)
        if live.replaced is not None:  # the open step's copy is withdrawn first
            assert computed is not None
            table[computed // self.size] = live.replaced
        if not live.admitted_now:
            self.parted.append(live.request)
        withdrawn = self.manager.free(live.request)
        assert name not in withdrawn
        assert in_step or not withdrawn
        for other in withdrawn:
            self.take_back(other)
        if in_step:
            self.take_back(name)
        self.live.pop(name, None)
        assert computed is not None
        held = {block_id for other in self.live for block_id in self.manager.block_table(other)}
        held |= {other.replaced for other in self.live.values() if other.replaced is not None}
        if self.index == "hash":
            for block_id in reversed(table):
                entry = self.cached.get(block_id)
                if (
                    entry
                    and block_id not in held
                    and next(b for b, e in self.cached.items() if e == entry) != block_id
                ):
                    del self.cached[block_id]  # an extra copy
        elif (
            computed % self.size
            and (computed - 1) // self.size < len(table)
            and table[computed // self.size] not in held
        ):
            start = computed - computed % self.size
            entry = Cached(
                live.request.namespace,
                tuple(live.request.token_ids(0, start)),
                tuple(live.request.token_ids(start, computed)),
            )
            if not self.is_cached(entry):
                self.cached[table[start // self.size]] = entry
                if not self.open:
                    self.drop_covered()

    @rule()
    def reset(self) -> None:
        free = self.manager.free_block_ids()
        done = self.manager.reset_prefix_cache()
        assert done == (len(free) == self.num_blocks)
        assert done or self.live or self.open
        assert self.manager.free_block_ids() == free
        if done:
            self.cached.clear()

    # -- laws ------------------------------------------------------------------------------------

    @invariant()
    def laws_hold(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check()
        held = {block_id for name in self.live for block_id in self.manager.block_table(name)}
        free = self.manager.free_block_ids()
        assert not held & set(free)
        assert len(free) + len(held) <= self.num_blocks
        if self.index == "hash" and not self.open:
            assert len(free) + len(held) == self.num_blocks
        if not self.live and not self.open:
            assert sorted(free) == list(range(self.num_blocks))
            assert self.manager.usage == 0.0
        stats = self.manager.stats
        assert (stats.queries, stats.hits) == (self.queries, self.hits)

    @invariant()
    def listeners_know_what_is_findable(self) -> None:
        if not hasattr(self, "manager"):
            return
        whole = {
            block_id: (entry.namespace, entry.parent + entry.tokens)
            for block_id, entry in self.cached.items()
            if len(entry.tokens) == self.size
        }
        written = {content for block_id, content in whole.items() if block_id not in self.pending}
        # A copy that is not written yet keeps a content announced whose first copy was evicted in this step.
        assert written <= set(self.follower.contents.values()) <= set(whole.values())

    @invariant()
    def events_rebuild_the_index(self) -> None:
        if not hasattr(self, "manager"):
            return
        assert self.replica.apply(self.manager.take_events())
        expected = {}
        for namespace, tokens in self.follower.contents.values():
            *_, above, digest = (None, *chain_of(namespace, tokens, self.size))
            expected[digest] = ReplicaBlock(above, tokens[-self.size :])
        assert self.replica.blocks == expected

    @invariant()
    def own_slots_hold_own_prefix(self) -> None:
        if not hasattr(self, "manager"):
            return
        slots = self.during_step()
        for name, live in self.live.items():
            table = self.manager.block_table(name)
            for position in range(live.computed):
                held = slots[table[position // self.size]][position % self.size]
                assert held == self.content(live.request, position)


@pytest.mark.parametrize(
    ("index", "free_order"), [("radix", "reverse"), ("hash", "reverse"), ("hash", "unhashed_first")]
)
def test_the_core_agrees_with_whole_token_lists(index: str, free_order: str) -> None:
    machine = type("Machine", (CacheMachine,), {"index": index, "free_order": free_order})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
