"""The `hash` index: a chain of block digests, digest → block, as in the published vLLM V1 design.

Only full blocks are findable.  Block tables are append-only, so two requests that fill equal blocks
side by side keep two copies under one digest; the first filled is found, and the others stop being
findable when their request is freed.  A block that nothing holds stays findable and stands in an order
(`victims.py`) until its slot is needed; with `lru` that is the free queue itself.

Order in that queue (law I7: no findable block without its parent): a request's blocks enter last
block first, so a findable block always stands before its parent and is evicted first.  Where a
freed block was an extra copy, the first copy takes its turn at the tail, because recency belongs to
the content: the request's later blocks just entered, and must not outlive it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from operator import truth

from headstart.cache.blocks import Block, BlockPool, law
from headstart.cache.fair import make_order
from headstart.cache.hashing import BlockHasher
from headstart.cache.index import Lease, Mark, Match
from headstart.cache.keys import CacheRequest
from headstart.cache.listener import Announcer, Listener
from headstart.cache.shares import Ledger
from headstart.cache.tokens import TOKEN_BYTES
from headstart.cache.victims import Pins, VictimOrder
from headstart.config import CacheConfig
from headstart.errors import CacheError

_AT_ONCE = 512
"""Blocks that a lookup hashes and compares before it asks whether all were found."""


class HashIndex:
    """Keeps the `PrefixIndex` protocol with one dictionary lookup per block."""

    def __init__(self, config: CacheConfig, listeners: Sequence[Listener] = ()) -> None:
        self._block_size = config.block_size
        self._enabled = config.enable_prefix_caching
        # A queue that is LRU may mix blocks with and without a hash; where use decides, the latter go first.
        mixed = config.free_order == "reverse" and config.policy == "lru" and not config.evict_generated_first
        mixed = mixed and config.tenant_share is None  # what holds nothing is nobody's
        self._unhashed_first = not (mixed and self._enabled)
        self._hasher = BlockHasher(config.block_size, algorithm=config.hash_algorithm)
        self._pool = BlockPool(config.num_blocks)
        self._first: dict[bytes, Block] = {}
        self._copies: dict[bytes, list[Block]] = {}  # further blocks of a digest, oldest first
        self._pending: list[tuple[CacheRequest, int, list[Block]]] = []  # from which place in the request on
        self._ledger = None if config.tenant_share is None else Ledger(config.num_blocks, config.tenant_share)
        self._order: VictimOrder[Block] = make_order(config, self._pool.free, self, self._ledger)
        self._num_below: Counter[bytes] = Counter()  # of a digest: written digests that continue it
        self._pins: Pins[bytes, Block] = Pins(self._order, self._path)
        self._announcer = Announcer(config.num_blocks, listeners)
        self._num_evicted_blocks = 0
        self._num_collisions = 0

    @property
    def num_free_blocks(self) -> int:
        return len(self._order)

    @property
    def num_evicted_blocks(self) -> int:
        return self._num_evicted_blocks

    @property
    def num_collisions(self) -> int:
        return self._num_collisions

    def free_block_ids(self, request: CacheRequest | None = None) -> list[int]:
        return [block.block_id for block in self._order.each_block(request)]

    # -- what depends on what: the order's `Shape` -----------------------------------------------

    def num_below(self, item: Block) -> int:
        if item.digest is None or self._has_written_copy(item.digest):  # that takes its place
            return 0
        return self._num_below[item.digest]

    def _has_written_copy(self, digest: bytes) -> bool:
        """One that is still pending may be taken back, and what continues the content would stay behind."""
        return any(copy.pending_for is None for copy in self._copies.get(digest, ()))

    def above(self, item: Block) -> Block | None:
        if item.parent is None or item.digest is None or self._has_written_copy(item.digest):
            return None
        return self._first.get(item.parent)

    def _path(self, digest: bytes) -> Iterator[Block]:
        """The blocks that are found up to ``digest``, the last first."""
        step: bytes | None = digest
        while step is not None:
            block = self._first[step]
            yield block
            step = block.parent

    def _claim(
        self, request: CacheRequest, found: Iterable[tuple[int, Block]], *, is_use: bool = True
    ) -> None:
        """Tell the order of eviction what the request wants of blocks, found at these places of it."""
        if self._order.is_asked(request):
            for index, block in found:
                claim = self._order.claim_of(request, index, index + 1, self._block_size)
                self._order.claim(block, claim, is_use=is_use)

    # -- reading ---------------------------------------------------------------------------------

    def match(self, request: CacheRequest, limit: int) -> Match:
        found: list[Block] = []
        end, full, find = limit // self._block_size, request.num_tokens // self._block_size, self._first.get
        for start in range(0, end, _AT_ONCE):
            stop = min(start + _AT_ONCE, end)
            # A full block that may not be a hit will be published: it costs least with the others.
            digests = self._hasher.extend(request, full if full == stop + 1 else stop)[start:stop]
            blocks = [block for block in takewhile(truth, map(find, digests)) if block is not None]
            found += blocks
            if not self._are_all_of(request, start, blocks):
                own = (self._is_of(request, index, block) for index, block in enumerate(blocks, start))
                del found[start + sum(takewhile(bool, own)) :]
                self._count_collision(request)
            if len(found) < stop:
                break
        shared_with = frozenset([block.pending_for for block in found if block.pending_for is not None])
        return Match([block.block_id for block in found], shared_with=shared_with, place=found)

    def _are_all_of(self, request: CacheRequest, start: int, blocks: list[Block]) -> bool:
        """`_is_of` for a row of blocks from ``start`` on, compared together."""
        if not blocks:
            return True
        size, stop, digests = self._block_size, start + len(blocks), request.digests
        parents = digests[start - 1 : stop - 1] if start else [None, *digests[: stop - 1]]
        return (
            request.tokens.startswith(b"".join([block.run for block in blocks]), start * size * TOKEN_BYTES)
            and [block.parent for block in blocks] == parents
            and [block.identity for block in blocks] == request.identities(start, stop, size)
        )

    def _is_of(self, request: CacheRequest, index: int, block: Block) -> bool:
        """Whether ``block`` holds the content of the request's ``index``-th block, if those before do."""
        size = self._block_size
        return (
            block.run == request.run(index * size, (index + 1) * size)
            and block.parent == (request.digests[index - 1] if index else None)
            and block.identity == request.identities(index, index + 1, size)[0]
        )

    def _count_collision(self, request: CacheRequest) -> None:
        self._num_collisions += not request.has_collided
        request.has_collided = True

    def _blocks(self, block_ids: Iterable[int]) -> list[Block]:
        blocks = self._pool.blocks
        return [blocks[block_id] for block_id in block_ids]

    def cost(self, match: Match) -> int:
        return len([None for block in match.place or () if not block.ref_count])

    # -- taking ----------------------------------------------------------------------------------

    def begin_step(self, now: float) -> None:
        self._order.begin_step(now)

    def admit(self, request: CacheRequest, match: Match) -> Lease:
        hit: list[Block] = match.place or []
        self._order.remove_all([block for block in hit if not block.ref_count])
        for block in hit:
            block.ref_count += 1
        self._claim(request, enumerate(hit))
        return Lease(request, list(match.block_ids))

    def take(self, lease: Lease, count: int) -> None:
        if self._ledger is not None:
            self._take_in_turn(lease, count, self._ledger)
            return
        base = self._order.base
        taken = base.take(min(count, len(base)))
        self._give_up_all([block for block in taken if block.digest is not None])
        while len(taken) < count:  # who is next depends on who has gone
            taken.append(block := self._order.popleft())
            self._give_up(block)
        for block in taken:
            block.ref_count = 1
        lease.block_ids += [block.block_id for block in taken]

    def _take_in_turn(self, lease: Lease, count: int, ledger: Ledger) -> None:
        """One by one: with each, whose turn it is to give up the next one may change."""
        for _ in range(count):
            owner = ledger.charge(lease.request)
            block = self._order.popleft()
            if block.digest is not None:
                self._give_up(block)
            ledger.give(block.block_id, owner)
            block.ref_count = 1
            lease.block_ids.append(block.block_id)

    def _give_back(self, blocks: list[Block]) -> None:
        """They hold nothing any more and are taken next."""
        if self._ledger is not None:
            self._ledger.take_back([block.block_id for block in blocks])
        self._pool.free.prepend_all(blocks)

    def publish(self, lease: Lease, num_blocks: int) -> frozenset[str]:
        if not self._enabled or num_blocks <= lease.num_published or lease.has_collided:
            return frozenset()
        request, start, size = lease.request, lease.num_published, self._block_size
        filled = self._blocks(lease.block_ids[start:num_blocks])
        digests = self._hasher.extend(request, num_blocks)
        found = list(map(self._first.setdefault, digests[start:num_blocks], filled))
        if found != filled:
            found = self._share(lease, start, filled, found)
            lease.has_collided = len(found) < len(filled)
        run, num_bytes = request.run(start * size, num_blocks * size), size * TOKEN_BYTES
        request_id, parent = request.request_id, digests[start - 1] if start else None
        identities = request.identities(start, num_blocks, size)
        content = zip(filled[: len(found)], digests[start:], identities)  # noqa: B905  # as far as found
        place = 0
        for block, digest, identity in content:
            if block.digest is not None:
                raise CacheError(f"{block!r} carries a digest already")
            block.digest, block.parent, block.pending_for = digest, parent, request_id
            block.run, block.identity = run[place : place + num_bytes], identity
            parent = digest
            place += num_bytes
        self._pending.append((request, start, filled[: len(found)]))
        self._claim(request, enumerate(found, start))
        lease.num_published = start + len(found)
        return frozenset()

    def _share(self, lease: Lease, start: int, filled: list[Block], found: list[Block]) -> list[Block]:
        """As much of ``found``, which the digests of ``filled`` lead to, as is these blocks' content.

        Where it is another block, these are copies.  Ends where a digest is another content's: neither that
        block nor what follows it can be found, ever.
        """
        request = lease.request
        for place, (block, first) in enumerate(zip(filled, found, strict=True)):
            if first is block:
                continue
            digest = request.digests[start + place]
            if not self._is_of(request, start + place, first):
                self._count_collision(request)
                self._unlist(request.digests[start + place + 1 :], filled[place + 1 :])
                return found[:place]
            self._copies.setdefault(digest, []).append(block)
        return found

    def _unlist(self, digests: list[bytes], blocks: list[Block]) -> None:
        for digest, block in zip(digests, blocks):  # noqa: B905  # there may be more digests
            if self._first.get(digest) is block:
                del self._first[digest]

    def fork(self, lease: Lease, request: CacheRequest) -> Lease:
        for block_id in lease.block_ids:
            self._pool.blocks[block_id].ref_count += 1
        twin = Lease(request, list(lease.block_ids))
        twin.num_published = count = lease.num_published
        twin.has_collided = lease.has_collided
        found = (self._first[digest] for digest in lease.request.digests[:count])
        self._claim(request, enumerate(found), is_use=False)
        request.digests[:count] = lease.request.digests[:count]  # the same tokens, hashed once
        return twin

    def holders(self, block_id: int) -> int:
        return self._pool.blocks[block_id].ref_count

    def replace(self, lease: Lease, position: int, block_id: int) -> int:
        replaced, lease.block_ids[position] = lease.block_ids[position], block_id
        return replaced

    def drop(self, block_id: int) -> None:
        block = self._pool.blocks[block_id]
        block.ref_count -= 1
        if block.ref_count == 0:
            self._give_back([block])

    def _give_up_all(self, blocks: list[Block]) -> None:
        """As `_give_up`, for blocks in the order in which they go."""
        is_plain = not (self._copies or self._order.uses_shape or self._announcer.is_heard)
        if not is_plain or any([block.use is not None for block in blocks]):  # noqa: C419  # the faster one
            for block in blocks:
                self._give_up(block)
            return
        first = self._first
        for block in blocks:
            del first[block.digest]  # type: ignore[arg-type]  # it has one
            block.digest = block.parent = block.identity = None
            block.run = b""
        self._num_evicted_blocks += len(blocks)

    @staticmethod
    def _empty(block: Block) -> None:
        block.digest = block.parent = block.identity = block.pending_for = block.use = None
        block.run = b""

    def _give_up(self, block: Block) -> None:
        """Forget what the block holds, for its slots."""
        if block.digest not in self._copies:
            self._tell_evicted(block)
        self._num_evicted_blocks += 1
        self._forget(block)

    def _tell_evicted(self, block: Block) -> None:
        """The last block with this content is given up."""
        self._order.evicted(block)
        if block.use is not None and block.use.pins and block.digest is not None:
            self._pins.moved(block.digest, block.parent)

    def _forget(self, block: Block) -> None:
        """Make the block unfindable; the next copy of its digest, if any, takes its place."""
        digest = block.digest
        if digest is None:
            raise CacheError(f"{block!r} has no digest to forget")
        copies = self._copies.get(digest, [])
        first = self._first[digest]
        if first is not block:
            copies.remove(block)
        elif copies:
            self._first[digest] = copies.pop(0)
            self._first[digest].use = block.use
            self._announcer.moved(block.block_id, self._first[digest].block_id)
        else:
            del self._first[digest]
            self._announcer.removed([block.block_id])
        if first is block and block.pending_for is None and not self._is_written(digest):
            self._count_out(block)
        if not copies:
            self._copies.pop(digest, None)
        if first is not block:
            self._order.review(first)
        self._empty(block)

    def _is_written(self, digest: bytes) -> bool:
        first = self._first.get(digest)
        return first is not None and first.pending_for is None

    def _count_in(self, written: Iterable[Block]) -> None:
        """Those blocks were just written: they keep what they continue, and can take another's place."""
        for block in written:
            digest, parent = block.digest, block.parent
            if digest is None:
                continue
            if self._first[digest] is not block:
                self._order.review(self._first[digest])
            elif parent is not None:
                self._num_below[parent] += 1

    def _count_out(self, block: Block) -> None:
        """Nothing written is found under the block's digest any more."""
        parent = block.parent
        if parent is None or not self._order.uses_shape:
            return
        self._num_below[parent] -= 1
        if self._num_below[parent] == 0:
            del self._num_below[parent]
            if parent in self._first:
                self._order.review(self._first[parent])

    # -- the step --------------------------------------------------------------------------------

    def commit(self) -> None:
        for _, _, blocks in self._pending:
            for block in blocks:
                block.pending_for = None
        if self._order.uses_shape:
            self._count_in([block for _, _, blocks in self._pending for block in blocks])
        if self._announcer.is_heard:
            self._announce()

    def _announce(self) -> None:
        """Tell of the pending blocks that are the first with their content, run by run."""
        runs: list[tuple[CacheRequest, int, bytes | None, list[int]]] = []
        first, is_announced = self._first, self._announcer.is_announced
        following = 0
        for request, start, blocks in self._pending:
            for position, block in enumerate(blocks, start):
                if block.digest is None or first[block.digest] is not block or is_announced(block.block_id):
                    continue
                if not runs or runs[-1][0] is not request or position != following:
                    runs.append((request, position, block.parent, block_ids := []))
                block_ids.append(block.block_id)
                following = position + 1
        for request, start, parent, block_ids in runs:
            after = None if parent is None else first[parent].block_id
            self._announcer.stored(request, start, block_ids, after)

    def end_step(self) -> None:
        self._pending.clear()

    def mark(self, lease: Lease) -> Mark:
        return Mark(len(lease.block_ids), lease.num_published, lease.has_collided)

    def undo(self, lease: Lease, mark: Mark) -> None:
        blocks = self._pool.blocks
        self._pending = [entry for entry in self._pending if entry[0] is not lease.request]
        for index in range(mark.num_published, lease.num_published):
            block = blocks[lease.block_ids[index]]
            if block.use is not None and block.use.pins and block.digest not in self._copies:
                self._tell_evicted(
                    block
                )  # the pinned copy that was evicted in this step had left it in its place
            self._forget(block)
        lease.num_published, lease.has_collided = mark.num_published, mark.place
        taken = [blocks[block_id] for block_id in lease.block_ids[mark.num_blocks :]]
        del lease.block_ids[mark.num_blocks :]
        for block in taken:
            block.ref_count = 0  # fresh in this step, so nobody else holds it
        self._give_back(taken)

    # -- giving back -----------------------------------------------------------------------------

    def release(self, lease: Lease, num_tokens: int) -> None:  # noqa: ARG002  # full blocks are findable already
        held = self._blocks(reversed(lease.block_ids))
        lease.block_ids.clear()
        for block in held:
            block.ref_count -= 1
        idle = [block for block in held if not block.ref_count]
        if self._copies:
            idle = self._without_copies(idle)
        if self._unhashed_first or lease.request.skip_writing:  # nothing of others goes for what nobody finds
            self._give_back([block for block in idle if block.digest is None])
            idle = [block for block in idle if block.digest is not None]
        self._order.append_all(idle)

    def _without_copies(self, idle: list[Block]) -> list[Block]:
        """Forget the extra copies; a first copy that is free leaves the queue and takes its turn behind."""
        order: list[Block] = []
        for block in idle:
            order.append(block)
            first = self._first[block.digest] if block.digest is not None else None
            if first is not None and first is not block:
                self._forget(block)
                if first.ref_count == 0:
                    self._order.remove(first)
                    order.append(first)
        return order

    def clear(self) -> None:
        self._order.drain()
        if self._ledger is not None:
            self._ledger.take_back(range(len(self._pool)))
        for block in self._pool.blocks:
            self._empty(block)
        self._first.clear()
        self._copies.clear()
        self._num_below.clear()
        self._pins = Pins(self._order, self._path)
        self._announcer.cleared()

    # -- pins ------------------------------------------------------------------------------------

    def pin(self, name: str, request: CacheRequest, most: int) -> bool:
        count = request.num_tokens // self._block_size
        blocks: list[Block] = []
        for digest in self._hasher.extend(request, count)[:count]:
            block = self._first.get(digest)
            if block is None or block.pending_for is not None:
                break
            blocks.append(block)
        if not self._are_all_of(request, 0, blocks):
            own = (self._is_of(request, index, block) for index, block in enumerate(blocks))
            del blocks[sum(takewhile(bool, own)) :]
        new = sum([block.use is None or not block.use.pins for block in blocks])
        if self._order.num_pinned_blocks + new > most:
            return False
        self._pins.pin(name, blocks[-1].digest if blocks else None)
        return True

    def unpin(self, name: str) -> None:
        self._pins.unpin(name)

    def num_pinned_blocks(self, name: str) -> int:
        return self._pins.num_blocks(name)

    # -- the state and the laws ------------------------------------------------------------------

    def state(self, leases: list[Lease]) -> Iterator[object]:
        # Digests carry the salt; the block that is found first under one says as well which it is.
        first = {digest: block.block_id for digest, block in self._first.items()}
        for block in self._pool.blocks:
            if block.digest is not None:
                above = None if block.parent is None else first.get(block.parent)
                yield block.block_id, block.ref_count, first[block.digest], above, block.pending_for
                if block.use is not None:
                    yield block.use.state()
            elif block.ref_count:
                yield block.block_id, block.ref_count
        yield from self._order.state()
        if pins := self._pins.state(lambda digest: first[digest]):
            yield pins
        yield sorted([first[digest], *(b.block_id for b in more)] for digest, more in self._copies.items())
        yield [(lease.request.request_id, lease.block_ids, lease.num_published) for lease in leases]
        if collided := [lease.request.request_id for lease in leases if lease.has_collided]:
            yield collided

    def check(self, leases: list[Lease], kept: list[int]) -> None:
        held = Counter(kept)
        for lease in leases:
            held.update(lease.block_ids)
        order = {block.block_id: place for place, block in enumerate(self._order)}
        findable = 0
        for block in self._pool.blocks:
            tables = held[block.block_id]
            law(block.ref_count == tables, f"I3: {block!r} is held by {tables} tables")
            law(
                (tables == 0) == (block.block_id in order), f"I1: {block!r} is both free and held, or neither"
            )
            if block.digest is None:
                law(block.pending_for is None, f"I4: {block!r} is pending but not findable")
                continue
            findable += 1
            copies = self._copies.get(block.digest, [])
            first = self._first.get(block.digest)
            law(first is block or block in copies, f"I2: {block!r} is not under its digest")
            if block.parent is not None:
                parent = self._first.get(block.parent)
                if parent is None:
                    raise CacheError(f"law I7: {block!r} is findable without its parent")
                law(
                    block.pending_for is not None or parent.pending_for is None,
                    f"I4: {block!r} is written, but its parent {parent!r} is pending",
                )
                copies = [parent, *self._copies.get(block.parent, ())]
                written_copies = [copy for copy in copies if copy.pending_for is None]
                # a held one would take its place
                waits = block.ref_count == 0 and all(copy.ref_count == 0 for copy in written_copies)
                law(
                    not waits or order[block.block_id] < order[parent.block_id],
                    f"I7: {block!r} would outlive its parent {parent!r}",
                )
        indexed = len(self._first) + sum(map(len, self._copies.values()))
        law(indexed == findable, f"I2: {indexed} entries for {findable} findable blocks")
        law(len(order) == len(self._order), f"I1: the free queue counts {len(self._order)}")
        if self._order.uses_shape:
            written = [block for block in self._first.values() if block.pending_for is None]
            below = Counter(block.parent for block in written if block.parent is not None)
            law(below == self._num_below, f"I7: {sum(below.values())} blocks continue others, not as counted")
        self._order.check(self._first.values())
        if self._ledger is not None:
            self._ledger.check(block.block_id for block in self._pool.free)
