"""Stateful property tests of the cache core, both indexes, against an oracle that stores whole prompts.

The oracle knows nothing of trees and digests.  It keeps what every slot of every block would hold
if a model ran: the namespace and the entire list up to that slot of tokens, with the images and
embeddings that stand behind them.  A hit is right if every slot it hands out holds exactly the request's
own prefix; it is complete if no longer one could be had.  The radix index's ends inside no image.
Requests that skip reading, that skip writing, and preempted ones that come back, are among those it sees.

With a weak hash, digests of different contents are often equal: then what came second is not findable.

Of eviction it knows no policy's order, but what every policy owes: the victims are those that
`free_block_ids` named, whatever is cached has its beginning cached, and pinned content goes last.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

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

from headstart.cache import (
    Adapter,
    CacheConfig,
    CacheRequest,
    KVCacheManager,
    MediaSpan,
    MissReason,
    Namespace,
    PromptEmbeds,
)
from headstart.cache.events import EventReplica, ReplicaBlock
from headstart.cache.hashing import BlockHasher
from headstart.cache.whatif import WhatIf
from headstart.config import PolicyName, PrefixIndexName
from tests.cache.follower import Follower, Prefix, Symbol, symbols, units

IMAGES = {2: "cafe" * 4, 3: "beef" * 4}  # by their number of tokens
ROWS = [b"aabbccdd", b"aabbccee", b"xxbbccdd"]  # four of two bytes
PLAIN = Namespace()
NAMESPACES = st.sampled_from(
    [PLAIN, PLAIN, PLAIN, Namespace(salt="a"), Namespace(salt="b"), Namespace(Adapter("a", "1"))]
)


def weak_hash(data: bytes) -> bytes:
    """One of 24 digests."""
    return bytes([hashlib.sha256(data).digest()[0] % 24])


class DigestFollower(Follower):
    """Knows as well what events should say of each content that it was told of."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.hasher = BlockHasher(block_size)
        self.blocks: dict[Prefix, tuple[bytes, ReplicaBlock]] = {}

    def stored(self, request: CacheRequest, start: int, block_ids: Sequence[int], after: int | None) -> None:
        super().stored(request, start, block_ids, after)
        size, stop = self._block_size, start + len(block_ids)
        tokens = request.token_ids(0, stop * size)
        chain = [None, *self.chain(request, stop)]
        for index, block_id in enumerate(block_ids, start):
            told = ReplicaBlock(chain[index], tuple(tokens[index * size : (index + 1) * size]))
            self.blocks[self.contents[block_id]] = chain[index + 1], told

    def chain(self, request: CacheRequest, num_blocks: int) -> list[bytes]:
        """The digests of the request's first blocks."""
        size, chain = self._block_size, []
        for index, extra in enumerate(request.all_extra_keys(0, num_blocks, size)):
            tokens = request.token_ids(index * size, (index + 1) * size)
            chain.append(self.hasher.block_digest(chain[-1] if chain else None, tokens, extra))
        return chain


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
    collided: bool = False  # now, and before the open step
    collided_before: bool = False
    replaced: int | None = None  # the block that its table lost in the open step, held until the step ends
    writes: dict[tuple[int, int], Prefix] = field(default_factory=dict)
    copies: dict[tuple[int, int], object] = field(default_factory=dict)


@dataclass(frozen=True)
class Cached:
    """A block that should be findable: the prefix before it and the tokens in it."""

    namespace: Namespace
    parent: tuple[Symbol, ...]
    tokens: tuple[Symbol, ...]


class CacheMachine(RuleBasedStateMachine):
    options: dict[str, Any]
    index: str
    has_weak_hash = False
    pins_go_last = True

    @initialize(
        num_blocks=st.integers(3, 14),
        block_size=st.integers(1, 4),
        generated_first=st.booleans(),
        share=st.sampled_from([0.3, 0.5, 1.0]),
    )
    def make(self, num_blocks: int, block_size: int, generated_first: bool, share: float) -> None:
        self.size = block_size
        self.generated_first = generated_first
        self.follower = DigestFollower(block_size)
        self.what_if = WhatIf(num_blocks, block_size, window=None)
        self.manager = KVCacheManager(
            CacheConfig(
                num_blocks=num_blocks,
                block_size=block_size,
                enable_kv_cache_events=True,
                evict_generated_first=generated_first,
                max_pinned_share=share,
                ttl_seconds=5.0,
                half_life_seconds=3.0,
                protected_share=0.4,
                **self.options,
            ),
            listeners=[self.follower],
            what_if=self.what_if,
        )
        if self.has_weak_hash:
            for hasher in (self.follower.hasher, self.manager._index._hasher, self.manager._events._hasher):
                hasher._digest = weak_hash
        self.replica = EventReplica()
        self.num_blocks = num_blocks
        self.slots: list[list[object]] = [[GARBAGE] * block_size for _ in range(num_blocks)]
        self.live: dict[str, Live] = {}
        self.cached: dict[int, Cached] = {}  # in the order of publication
        self.pending: dict[int, str] = {}
        self.committed: dict[str, int] = {}  # of requests that skip reading: tokens once computed for them
        self.parted: list[CacheRequest] = []  # preempted: they hold nothing and may come back
        self.admitted: dict[str, CacheRequest] = {}  # ever
        self.missed: dict[str, tuple[int, int, bool]] = {}  # at first admissions: tokens, hits, looked
        self.digests: dict[int, bytes] = {}  # of cached blocks, as far as the index looks for them
        self.labels: dict[Prefix, int] = {}  # of contents, for estimates
        self.counter = 0
        self.queries = self.hits = 0
        self.open = False
        self.now = 0.0
        self.most_pinned = int(share * num_blocks)
        self.pinned: dict[str, tuple[float, set[Prefix]]] = {}  # until when; each block as its whole prefix
        self.retained: list[str] = []  # those of them that give way, the longest retained first

    # -- the oracle ------------------------------------------------------------------------------

    def symbols(self, request: CacheRequest, start: int, stop: int) -> tuple[Symbol, ...]:
        return symbols(request, self.size, stop)[start:]

    def content(self, request: CacheRequest, position: int) -> Prefix:
        return request.namespace, self.symbols(request, 0, position + 1)

    def expected_hit(self, request: CacheRequest) -> int:
        limit = request.num_tokens - 1
        if request.skip_reading:
            own = 0 if request.skip_writing else self.committed.get(request.request_id, 0)
            limit = min(limit, own)
        hit = self.longest(request, limit)
        if self.index == "radix":
            while inside := [start for start, end, _ in units(request, self.size) if start < hit < end]:
                hit = self.longest(request, min(inside))
        return hit

    def longest(self, request: CacheRequest, limit: int) -> int:
        """The longest cached prefix of at most ``limit`` tokens."""
        tokens, size = self.symbols(request, 0, request.num_tokens), self.size
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
        if live.collided or request.skip_writing:
            return
        chain = self.follower.chain(request, live.computed // size) if self.has_weak_hash else []
        for index, block_id in enumerate(self.manager.block_table(request.request_id)):
            stop = (index + 1) * size
            if stop > live.computed or block_id in self.cached:
                continue
            entry = Cached(
                request.namespace,
                self.symbols(request, 0, stop - size),
                self.symbols(request, stop - size, stop),
            )
            if self.index == "radix" and self.is_cached(entry):
                continue  # a repeat stays private
            if self.has_weak_hash:
                if any(
                    entry != other and self.digests[b] == chain[index] for b, other in self.cached.items()
                ):
                    live.collided = True  # neither this nor what follows can be found
                    return
                self.digests[block_id] = chain[index]
            self.cached[block_id] = entry
            self.pending[block_id] = request.request_id

    def drop_covered(self) -> None:
        for block_id, entry in list(self.cached.items()):
            if len(entry.tokens) < self.size:
                del self.cached[block_id]
                if not self.is_cached(entry):
                    self.cached[block_id] = entry

    def pinned_contents(self) -> set[Prefix]:
        return {content for _, contents in self.pinned.values() for content in contents}

    def taken(self, request: CacheRequest, block_ids: list[int], free: list[int], shared: set[int]) -> None:
        """The request took these of the ``free`` ones, once it held the ``shared`` ones of its hit."""
        assert block_ids == free[: len(block_ids)]
        self.evict(block_ids, free)

    def evict(self, block_ids: list[int], free: list[int]) -> None:
        """``block_ids`` of ``free`` are taken: whatever they held is lost, and no one needed it more."""
        pinned = self.pinned_contents()
        before = {self.prefix(entry) for entry in self.cached.values()}
        for block_id in block_ids:
            self.cached.pop(block_id, None)
        after = {self.prefix(entry) for entry in self.cached.values()}
        spared = [b for b in free if b not in block_ids]
        if pinned & (before - after):  # pinned content went: then nothing else could have gone
            assert not self.pins_go_last or all(
                b in self.cached and self.prefix(self.cached[b]) in pinned for b in spared
            )
            self.pinned = {name: (t, kept & after) for name, (t, kept) in self.pinned.items()}

    @staticmethod
    def prefix(entry: Cached) -> Prefix:
        return entry.namespace, entry.parent + entry.tokens

    def granted(self, live: Live, copies: tuple, start: int, count: int) -> None:
        table = self.manager.block_table(live.request.request_id)
        for copy in copies:
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
        found = {
            self.prefix(entry) for entry in self.cached.values()
        }  # a copy may have carried on what is pinned
        self.pinned = {name: (until, kept & found) for name, (until, kept) in self.pinned.items()}
        if live.admitted_now:  # its admission counts no more
            self.queries -= live.asked
            self.hits -= live.hit
            if live.request.num_admissions == 0:
                del self.missed[request_id]
            del self.live[request_id]
        else:
            assert live.before is not None
            live.computed, live.before = live.before, None
            live.collided = live.collided_before
            live.writes, live.copies, live.replaced = {}, {}, None

    # -- rules -----------------------------------------------------------------------------------

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14),
        namespace=NAMESPACES,
        chunk=st.integers(1, 14),
        blind=st.integers(0, 9),
        keep_copy=st.booleans(),
        skip_reading=st.sampled_from([False, False, True]),
        skip_writing=st.sampled_from([False, False, False, True]),
        priority=st.sampled_from([0, 0, 0, 1, 9]),
        num_prompt_tokens=st.integers(0, 14),
        images=st.lists(st.tuples(st.sampled_from([2, 3]), st.integers(0, 3)), max_size=2),
        rows=st.sampled_from([None, None, None, *ROWS]),
    )
    def admit(
        self,
        tokens: list[int],
        namespace: Namespace,
        chunk: int,
        blind: int,
        keep_copy: bool,
        skip_reading: bool,
        skip_writing: bool,
        priority: int,
        num_prompt_tokens: int,
        images: list[tuple[int, int]],
        rows: bytes | None,
    ) -> None:
        self.counter += 1
        media: list[MediaSpan] = []
        for length, gap in images:
            offset = gap + (media[-1].end if media else 0)
            if offset + length <= len(tokens):
                media.append(MediaSpan(IMAGES[length], offset, length))
        request = CacheRequest(
            f"r{self.counter}",
            tokens,
            namespace=namespace,
            media=media,
            prompt_embeds=None if rows is None or len(tokens) < 4 else PromptEmbeds(rows, 4),
            skip_reading=skip_reading,
            skip_writing=skip_writing,
            num_prompt_tokens=min(num_prompt_tokens, len(tokens)),
            retention_priority=priority,
        )
        self.let_in(request, chunk, blind, keep_copy, counts=not skip_reading)

    @precondition(lambda self: self.live)
    @rule(
        data=st.data(),
        namespace=st.one_of(st.none(), NAMESPACES),
        more=st.integers(0, 1),
        blind=st.integers(0, 2),
        chunk=st.integers(4, 14),
        skip_writing=st.sampled_from([False, False, True]),
    )
    def admit_a_twin(
        self,
        data: st.DataObject,
        namespace: Namespace | None,
        more: int,
        blind: int,
        chunk: int,
        skip_writing: bool,
    ) -> None:
        """The content of a live one once more, maybe in the same step, maybe in another namespace."""
        model = self.live[data.draw(st.sampled_from(sorted(self.live)))].request
        self.counter += 1
        request = CacheRequest(
            f"r{self.counter}",
            [*model.token_ids(), more],
            namespace=namespace or model.namespace,
            media=model.media,
            prompt_embeds=model.prompt_embeds,
            skip_writing=skip_writing,
            num_prompt_tokens=model.num_prompt_tokens,
        )
        self.let_in(request, chunk, blind, keep_copy=True, counts=True)

    @precondition(lambda self: not self.open)
    @rule(count=st.integers(1, 14), keep=st.booleans())
    def flood(self, count: int, keep: bool) -> None:
        """A prompt of its own kind takes blocks, and evicts what is cached."""
        self.counter += 1
        request = CacheRequest(f"r{self.counter}", [self.counter + 9] * (count * self.size))
        self.let_in(request, request.num_tokens, blind=1, keep_copy=True, counts=True)
        if self.open:
            self.commit()
            if not keep:
                self.release(request.request_id)

    @precondition(lambda self: not self.open)
    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14),
        namespace=NAMESPACES,
        skip_writing=st.booleans(),
        keep=st.sampled_from([False, False, True]),
    )
    def serve(self, tokens: list[int], namespace: Namespace, skip_writing: bool, keep: bool) -> None:
        """A whole life in one go."""
        self.counter += 1
        request = CacheRequest(f"r{self.counter}", tokens, namespace=namespace, skip_writing=skip_writing)
        self.let_in(request, len(tokens), blind=1, keep_copy=True, counts=True)
        if self.open:
            self.commit()
            if not keep:
                self.release(request.request_id)

    @precondition(lambda self: self.parted)
    @rule(data=st.data(), chunk=st.integers(1, 14), blind=st.integers(0, 9), keep_copy=st.booleans())
    def readmit(self, data: st.DataObject, chunk: int, blind: int, keep_copy: bool) -> None:
        request = self.parted.pop(data.draw(st.integers(0, len(self.parted) - 1)))
        self.let_in(request, chunk, blind, keep_copy, counts=False)

    def listed(self, request: CacheRequest) -> list[int]:  # for machines with shares
        """The blocks that can be had, as they go for this request."""
        return self.manager.free_block_ids()

    def let_in(self, request: CacheRequest, chunk: int, blind: int, keep_copy: bool, *, counts: bool) -> None:
        tokens = request.token_ids()
        free = self.listed(request)
        hit = self.manager.get_computed_blocks(request)
        assert self.listed(request) == free
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
        is_first = request.num_admissions == 0
        grant = self.manager.allocate_slots(request, count, hit)
        needed = -(-(seen + count) // self.size) - (len(hit.block_ids) if hit else 0)
        available = [block_id for block_id in free if block_id not in shared]
        if grant is None:
            assert needed > len(available)
            assert self.listed(request) == free
            assert tables == {name: self.manager.block_table(name) for name in self.live}
            assert self.manager.stats == stats
            return
        self.taken(request, grant.block_ids, available, shared)
        live = self.live[request.request_id] = Live(
            request, seen, counts * len(tokens), counts * seen, before=0, admitted_now=True
        )
        self.admitted[request.request_id] = request
        if is_first:
            self.missed[request.request_id] = len(tokens), seen, hit is not None and not request.skip_reading
        slots = self.during_step()
        table = self.manager.block_table(request.request_id)
        whole = len(hit.block_ids) * self.size if hit else 0
        for position in range(whole):
            assert slots[table[position // self.size]][position % self.size] == self.content(
                request, position
            )
        self.granted(live, grant.copies, seen, count)
        self.queries, self.hits = self.queries + counts * len(tokens), self.hits + counts * seen
        self.open = True

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(0, 1), chunk=st.integers(1, 6))
    def extend(self, data: st.DataObject, token: int, chunk: int) -> None:
        live = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        if live.computed == live.request.num_tokens:
            live.request.append(token)
        count = min(chunk, live.request.num_tokens - live.computed)
        free = self.listed(live.request)
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
            assert self.listed(live.request) == free
            assert self.manager.block_table(live.request.request_id) == table
            return
        available, taken = list(free), [*grant.replaced.values(), *grant.block_ids]  # in this order
        assert len(grant.replaced) == len(grant.copies) == (holders > 1)
        if grant.replaced:
            assert grant.replaced == {table[position]: free[0]}
            live.replaced = table[position]
            table[position] = free.pop(0)
        assert grant.block_ids == free[:needed]
        assert self.manager.block_table(live.request.request_id) == table + grant.block_ids
        if live.before is None:
            live.before = live.computed
        self.taken(live.request, taken, available, set())
        self.granted(live, grant.copies, live.computed, count)
        self.open = True

    @precondition(lambda self: any(live.before is None for live in self.live.values()))
    @rule(data=st.data(), token=st.integers(0, 1), silent=st.sampled_from([False, False, True]))
    def fork(self, data: st.DataObject, token: int, silent: bool) -> None:
        name = data.draw(st.sampled_from(sorted(n for n, live in self.live.items() if live.before is None)))
        live = self.live[name]
        self.counter += 1
        known = max([live.computed, *(end for _, end, _ in units(live.request, self.size))])
        tokens = [*live.request.token_ids(0, known), token]
        child = CacheRequest(
            f"r{self.counter}",
            tokens,
            namespace=live.request.namespace,
            media=live.request.media,
            prompt_embeds=live.request.prompt_embeds,
            skip_reading=live.request.skip_reading,
            skip_writing=live.request.skip_writing or silent,
        )
        free, table = self.manager.free_block_ids(), self.manager.block_table(name)
        self.manager.fork(live.request, child)
        now_free = self.manager.free_block_ids()
        # A copy of the parent's may be free, and what is a prompt to the child is kept longer.
        assert now_free == free or (self.generated_first and set(now_free) == set(free))
        assert self.manager.block_table(child.request_id) == table
        self.live[child.request_id] = Live(child, live.computed, 0, 0)
        self.live[child.request_id].collided = live.collided
        self.live[child.request_id].collided_before = live.collided
        self.committed[child.request_id] = live.computed

    @precondition(lambda self: self.open)
    @rule()
    def commit(self) -> None:
        self.slots = self.during_step()
        self.manager.commit_step()
        for name, live in self.live.items():
            live.collided_before = live.collided
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
        self.release(data.draw(st.sampled_from(sorted(self.live))))

    def release(self, name: str) -> None:
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
            not live.request.skip_writing
            and computed % self.size
            and (computed - 1) // self.size < len(table)
            and table[computed // self.size] not in held
        ):
            start = computed - computed % self.size
            entry = Cached(
                live.request.namespace,
                self.symbols(live.request, 0, start),
                self.symbols(live.request, start, computed),
            )
            if not self.is_cached(entry):
                self.cached[table[start // self.size]] = entry
                if not self.open:
                    self.drop_covered()
        if live.request.skip_writing and not in_step:  # nothing that can be found goes for what cannot
            own = set(table) - held - set(self.cached)
            assert set(self.manager.free_block_ids()[: len(own)]) == own

    @rule()
    def reset(self) -> None:
        free = self.manager.free_block_ids()
        done = self.manager.reset_prefix_cache()
        assert done == (len(free) == self.num_blocks)
        assert done or self.live or self.open
        assert self.manager.free_block_ids() == free
        if done:
            self.cached.clear()
            self.pinned.clear()
            self.retained.clear()

    @rule(seconds=st.sampled_from([0.0, 1.0, 2.5, 6.0]))
    @precondition(lambda self: not self.open)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.manager.begin_step(self.now)
        self.pinned = {name: pin for name, pin in self.pinned.items() if pin[0] > self.now}
        self.retained = [name for name in self.retained if name in self.pinned]

    def pinnable(self, request: CacheRequest) -> set[Prefix]:
        written = {
            self.prefix(entry) for block_id, entry in self.cached.items() if block_id not in self.pending
        }
        found: set[Prefix] = set()
        for stop in range(self.size, request.num_tokens + 1, self.size):
            content = self.content(request, stop - 1)
            if content not in written:
                break
            found.add(content)
        return found

    @rule(
        data=st.data(),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14),
        namespace=NAMESPACES,
        seconds=st.sampled_from([0.5, 2.0, 100.0]),
        again=st.booleans(),
    )
    def pin(
        self, data: st.DataObject, tokens: list[int], namespace: Namespace, seconds: float, again: bool
    ) -> None:
        if self.live and again:  # one that is being served
            request = self.live[data.draw(st.sampled_from(sorted(self.live)))].request
        else:
            name = data.draw(st.sampled_from(["p0", "p1", "p2"]))
            request = CacheRequest(name, tokens, namespace=namespace)
        found = self.pinnable(request)
        before = self.manager.pins, set(self.manager.free_block_ids())
        pin = self.manager.pin(request, seconds)
        assert set(self.manager.free_block_ids()) == before[1]
        fits = len(self.pinned_contents() | found) <= self.most_pinned
        assert (pin is not None) == fits
        if pin is None:
            assert self.manager.pins == before[0]
            return
        assert pin == self.manager.pins[-1]
        self.let_go(request.request_id)
        self.pinned[request.request_id] = self.now + seconds, found

    def let_go(self, name: str) -> None:
        self.pinned.pop(name, None)
        if name in self.retained:
            self.retained.remove(name)

    @rule(
        data=st.data(),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14),
        namespace=NAMESPACES,
        seconds=st.sampled_from([0.5, 2.0, 100.0]),
        name=st.sampled_from([None, "k0", "k1", "k2", "k3", "p0"]),
        again=st.integers(0, 4),
    )
    def retain(
        self,
        data: st.DataObject,
        tokens: list[int],
        namespace: Namespace,
        seconds: float,
        name: str | None,
        again: int,
    ) -> None:
        request = CacheRequest("p1", tokens, namespace=namespace)
        if self.live and again:
            request = self.live[data.draw(st.sampled_from(sorted(self.live)))].request
        name_or_id = request.request_id if name is None else name
        found = self.pinnable(request)
        pinned = {other: kept for other, kept in self.pinned.items() if other not in self.retained}
        lasting = {content for _, kept in pinned.values() for content in kept}
        free = set(self.manager.free_block_ids())
        pin = self.manager.retain(request, seconds, name)
        assert set(self.manager.free_block_ids()) == free
        if not 0 < request.num_tokens // self.size <= self.most_pinned:
            assert pin is None
            return
        while len(self.pinned_contents() | found) > self.most_pinned and self.retained:
            self.let_go(name_or_id if name_or_id in self.retained else self.retained[0])
        assert (pin is None) == (not found or len(lasting | found) > self.most_pinned)
        if len(self.pinned_contents() | found) <= self.most_pinned:
            self.let_go(name_or_id)
            if found:
                self.pinned[name_or_id] = self.now + seconds, found
                self.retained.append(name_or_id)
        assert pin is None or pin == self.manager.pins[-1]

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.pinned)))
        assert self.manager.unpin(name)
        assert not self.manager.unpin(name)
        self.let_go(name)

    @precondition(lambda self: self.admitted)
    @rule(data=st.data())
    def explain(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from(sorted(self.admitted)), max_size=3, unique=True))
        self.explained(names)

    def explained(self, names: Sequence[str]) -> None:
        reports = self.manager.explain_misses(self.admitted[name] for name in names)
        assert [report.request_id for report in reports] == [name for name in names if name in self.missed]
        for report in reports:
            num_tokens, hit, looked = self.missed[report.request_id]
            assert (report.num_prompt_tokens, report.num_hit_tokens) == (num_tokens, hit)
            assert hit + sum(report.tokens.values()) == num_tokens
            assert min(report.tokens.values()) > 0
            assert (MissReason.SKIPPED in report.tokens) == (not looked)
            assert report.tokens.get(MissReason.LAST_TOKEN, 0) == looked

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.explained(sorted(self.admitted))

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
    def nothing_is_cached_without_its_beginning(self) -> None:
        if not hasattr(self, "manager"):
            return
        found = {self.prefix(entry) for entry in self.cached.values()}
        assert all(not c.parent or (c.namespace, c.parent) in found for c in self.cached.values())

    @invariant()
    def pins_are_listed(self) -> None:
        if not hasattr(self, "manager"):
            return
        listed = [(pin.request_id, (pin.until, pin.num_blocks)) for pin in self.manager.pins]
        assert listed == [(name, (until, len(found))) for name, (until, found) in self.pinned.items()]

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
        assert self.replica.blocks == dict(self.follower.blocks[c] for c in self.follower.contents.values())

    @invariant()
    def estimates_know_what_is_findable(self) -> None:
        if not hasattr(self, "manager"):
            return
        what_if, contents = self.what_if, self.follower.contents
        depths = {b: near.count for b, near in enumerate(what_if._nearest) if near is not None}
        assert depths == {b: len(content[1]) // self.size for b, content in contents.items()}
        for block_id, content in contents.items():
            assert self.labels.setdefault(content, what_if._labels[block_id]) == what_if._labels[block_id]
        assert set(what_if._running) <= set(self.live)
        assert not what_if._fresh
        if not self.open:
            assert what_if.rates()["1x"] == pytest.approx(self.hits / (self.queries or 1))

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


INDEXES, POLICIES = get_args(PrefixIndexName), get_args(PolicyName)
FLAVOURS = [(index, policy, "reverse", False) for index in INDEXES for policy in POLICIES]
FLAVOURS += [("hash", "lru", "unhashed_first", False)]  # the other policies have no choice
FLAVOURS += [("hash", policy, "reverse", True) for policy in POLICIES]


def cache_machine(index: str, policy: str, free_order: str, has_weak_hash: bool) -> type[CacheMachine]:
    options = {"index": index, "policy": policy, "free_order": free_order}
    return type(
        "Machine", (CacheMachine,), {"index": index, "options": options, "has_weak_hash": has_weak_hash}
    )


@pytest.mark.parametrize(("index", "policy", "free_order", "has_weak_hash"), FLAVOURS)
def test_the_core_agrees_with_whole_token_lists(
    index: str, policy: str, free_order: str, has_weak_hash: bool
) -> None:
    machine = cache_machine(index, policy, free_order, has_weak_hash)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES * 2 // 5 if policy == "lru" else EXAMPLES // 6,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
