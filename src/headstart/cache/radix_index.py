"""The `radix` index: what SGLang's RadixAttention does, over blocks.

Who owns a block: the pool's free queue, or one node of the tree, or (privately) one request.  A
request's filled blocks pass to the tree when they are published.  A block that repeats what the tree
has stays private to its request, since a tree cannot hold a path twice, and is freed with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headstart.cache.blocks import FreeIds, law
from headstart.cache.codes import Codes
from headstart.cache.eviction import Claim
from headstart.cache.index import Lease, Mark, Match, PartialBlock
from headstart.cache.keys import CacheRequest
from headstart.cache.listener import Announcer, Listener
from headstart.cache.radix_tree import Node, RadixTree, Walk, common_tokens
from headstart.cache.shares import Ledger
from headstart.cache.tokens import TOKEN_BYTES, part_of
from headstart.config import CacheConfig


@dataclass(slots=True)
class _Place:
    """Where a match ended (None: at the root), and the node that holds the block to copy from."""

    node: Node | None = None
    inside: Node | None = None
    num_inside: int = 0
    source: Node | None = None


@dataclass(slots=True)
class _Grown:
    """What a request added to the tree: its blocks from ``start`` on, behind block ``after``."""

    request: CacheRequest
    start: int
    block_ids: tuple[int, ...]
    after: int | None


_NOBODY: frozenset[str] = frozenset()


def _pending_for(nodes: Sequence[Node]) -> frozenset[str]:
    """The requests whose step will write one of the nodes."""
    if not nodes:
        return _NOBODY
    return frozenset([node.pending_for for node in nodes if node.pending_for is not None])


def _joined(first: list[int], second: list[int]) -> list[int]:
    """Both, in one of them: each pass over thousands of block ids is a part of what a long prompt costs."""
    if not first:
        return second
    first += second
    return first


class RadixLease(Lease):
    """A lease that knows its deepest node, and which published blocks stayed private as repeats."""

    __slots__ = ("node", "repeats")

    def __init__(self, request: CacheRequest, block_ids: list[int], node: Node) -> None:
        super().__init__(request, block_ids)
        self.node = node
        self.repeats: set[int] = set()


class RadixIndex:
    """Keeps the `PrefixIndex` protocol over one `RadixTree`."""

    def __init__(self, config: CacheConfig, listeners: Sequence[Listener] = ()) -> None:
        self._enabled = config.enable_prefix_caching
        self._generated_first = config.evict_generated_first
        self._block_size = config.block_size
        self._block_bytes = config.block_size * TOKEN_BYTES
        self._num_blocks = config.num_blocks
        self._free = FreeIds(config.num_blocks)
        self._ledger = None if config.tenant_share is None else Ledger(config.num_blocks, config.tenant_share)
        self._tree = RadixTree(config, self._ledger)
        self._codes = Codes(config.num_blocks, config.block_size)
        self._kept: list[Node] = []  # held until the step ends, because its copies read them
        self._more_holders: dict[int, int] = {}  # of private blocks: leases beyond the first, after a fork
        self._announcer = Announcer(config.num_blocks, listeners)
        self._unannounced: list[_Grown] = []  # this step's
        self._num_evicted_blocks = 0

    @property
    def num_free_blocks(self) -> int:
        return len(self._free) + self._tree.num_idle_blocks

    @property
    def num_evicted_blocks(self) -> int:
        return self._num_evicted_blocks

    @property
    def num_collisions(self) -> int:
        return 0  # content is compared, nothing else

    def free_block_ids(self, request: CacheRequest | None = None) -> list[int]:
        return [*self._free, *self._tree.idle_block_ids(request, len(self._free))]

    def _give_back(self, block_ids: list[int]) -> None:
        """They hold nothing any more and are taken next."""
        if self._ledger is not None:
            self._ledger.take_back(block_ids)
        self._free.prepend_all(block_ids)

    def _let_go(self, block_ids: list[int]) -> None:
        """Give back private blocks, but for those that a fork holds too."""
        if self._more_holders:
            block_ids = [block_id for block_id in block_ids if not self._has_other_holders(block_id)]
        self._give_back(block_ids)

    def _has_other_holders(self, block_id: int) -> bool:
        """Whether others hold the private block; counts the caller out if so."""
        others = self._more_holders.get(block_id, 0)
        if others == 0:
            return False
        if others == 1:
            del self._more_holders[block_id]
        else:
            self._more_holders[block_id] = others - 1
        return True

    # -- reading ---------------------------------------------------------------------------------

    def match(self, request: CacheRequest, limit: int) -> Match:
        root = self._tree.find_root(request.namespace)
        if root is None:
            return Match(place=_Place(root))
        run = self._codes.find(request)
        match = self._match(root, run, limit)
        while not request.is_plain:  # an end inside an image is moved to its start, where another may end
            copied = match.copy.num_tokens if match.copy else 0
            num_tokens = len(match.block_ids) * self._block_size + copied
            whole = self._codes.whole(request, num_tokens)
            if whole == num_tokens:
                break
            match = self._match(root, run, whole)
        return match

    def _match(self, root: Node, run: bytearray, limit: int) -> Match:
        """The longest cached prefix of ``run``, at most ``limit`` tokens."""
        stop = min(limit * TOKEN_BYTES, len(run))
        if stop <= 0:
            return Match(place=_Place(root))
        walk = self._tree.walk(root, run, 0, stop)
        block_ids: list[int] = []
        touched, inside, last = walk.nodes, walk.inside, root
        for last in touched:  # the last of them stays
            block_ids += last.block_ids
        if inside is not None:
            block_ids += inside.block_ids[: walk.num_inside]
            touched = [*touched, inside]
        shared_with = _pending_for(touched)
        rest = bytes(run[walk.offset : min(stop, walk.offset + self._block_bytes)])
        copy, source = self._partial(last, walk, rest)
        return Match(block_ids, copy, shared_with, _Place(last, inside, walk.num_inside, source))

    def _partial(self, last: Node, walk: Walk, rest: bytes) -> tuple[PartialBlock | None, Node | None]:
        """The committed block behind the walk that shares the most tokens with ``rest``, and its node."""
        inside, index = walk.inside, walk.num_inside
        candidates: Iterable[tuple[bytes, Node]]
        if inside is None:
            candidates = self._tree.neighbours(last, rest)
        else:
            candidates = [(self._tree.block_run(inside, index), inside)] if inside.pending_for is None else []
        source, longest = None, 0
        for run, node in candidates:
            common = common_tokens(run, rest)
            if common > longest:
                source, longest = node, common
        if source is None:
            return None, None
        return PartialBlock(source.block_ids[index], longest), source

    def cost(self, match: Match) -> int:
        place = match.place or _Place()
        path = place.node.path() if place.node is not None else ()
        cost = sum(len(node.block_ids) for node in path if node.lock == 0)
        if place.inside is not None and place.inside.lock == 0:
            cost += place.num_inside
        if match.copy is not None and place.source is not None and place.source.lock == 0:
            cost += 1
        return cost

    # -- taking ----------------------------------------------------------------------------------

    def begin_step(self, now: float) -> None:
        self._tree.idle.begin_step(now)

    def _claim(self, request: CacheRequest, node: Node, stop: int, *, is_use: bool = True) -> None:
        """Tell the order of eviction what the request wants of the node, which ends before block ``stop``."""
        claim = self._claim_of(request, stop - len(node.block_ids), stop)
        if claim is not None:
            self._tree.idle.claim(node, claim, is_use=is_use)

    def _claim_of(self, request: CacheRequest, start: int, stop: int) -> Claim | None:
        order = self._tree.idle
        return order.claim_of(request, start, stop, self._block_size) if order.is_asked(request) else None

    def _claim_path(self, request: CacheRequest, node: Node, stop: int, *, is_use: bool = True) -> None:
        """The same for ``node`` and all above it."""
        if self._tree.idle.is_asked(request):
            for step in node.path():
                self._claim(request, step, stop, is_use=is_use)
                stop -= len(step.block_ids)

    def admit(self, request: CacheRequest, match: Match) -> RadixLease:
        if self._enabled:
            self._codes.make(request)  # what is used is remembered
        place = match.place or _Place()
        node = place.node or self._tree.make_root(request.namespace)
        if place.inside is not None:
            node = self._tree.split(place.inside, place.num_inside)
        self._tree.lock(node)
        self._claim_path(request, node, len(match.block_ids))
        if match.copy is not None and place.source is not None:
            source = place.source
            if len(source.block_ids) > 1:
                source = self._tree.split(source, 1)  # keep that one block, not all that follow it
            self._tree.lock(source)
            self._claim(request, source, len(match.block_ids) + 1)
            self._kept.append(source)
        return RadixLease(request, list(match.block_ids), node)

    def take(self, lease: Lease, count: int) -> None:
        if self._ledger is not None:
            self._take_in_turn(lease, count, self._ledger)
            return
        unused = min(count, len(self._free))
        taken = self._free.take(unused) if unused else []
        if count > unused:
            evicted = self._tree.evict(count - unused)
            self._announcer.removed(evicted)
            self._num_evicted_blocks += len(evicted)
            taken = _joined(taken, evicted)
        lease.block_ids = _joined(lease.block_ids, taken)

    def _take_in_turn(self, lease: Lease, count: int, ledger: Ledger) -> None:
        """One by one: with each, whose turn it is to give up the next one may change."""
        for _ in range(count):
            owner = ledger.charge(lease.request)
            if len(self._free):
                taken = self._free.take(1)
            else:
                taken = self._tree.evict(1)
                self._announcer.removed(taken)
                self._num_evicted_blocks += 1
            ledger.give(taken[0], owner)
            lease.block_ids += taken

    def publish(self, lease: Lease, num_blocks: int) -> frozenset[str]:
        assert isinstance(lease, RadixLease)
        published = lease.num_published
        if not self._enabled or num_blocks <= published:
            return _NOBODY
        request, size, num_bytes = lease.request, self._block_size, self._block_bytes
        run = self._codes.make(request, published * size, num_blocks * size)
        num_blocks = min(num_blocks, len(run) // num_bytes)
        if num_blocks <= published:
            return _NOBODY
        walk = self._tree.walk(lease.node, run, published * num_bytes, num_blocks * num_bytes)
        known = walk.nodes
        if walk.inside is not None:
            known = [*known, self._tree.split(walk.inside, walk.num_inside)]
        asks = self._tree.idle.is_asked(request)
        start = published
        for node in known:
            self._tree.lock_one(node)
            start += len(node.block_ids)
            if asks:  # it was not found, or its copy counts: this is no use
                self._claim(request, node, start, is_use=False)
            lease.node = node
        if known:
            lease.repeats.update(lease.block_ids[published:start])
        if start < num_blocks:
            if self._announcer.is_heard:
                after = lease.node.block_ids[-1] if lease.node.block_ids else None
                new = tuple(lease.block_ids[start:num_blocks])
                self._unannounced.append(_Grown(request, start, new, after))
            for first, last in self._parts(request, start, num_blocks):
                part, blocks = part_of(run, first * size, last * size), lease.block_ids[first:last]
                lease.node = self._tree.grow(lease.node, part, blocks, request.request_id)
                if asks:
                    self._claim(request, lease.node, last)
        lease.num_published = num_blocks
        return _pending_for(known)

    def _parts(self, request: CacheRequest, start: int, stop: int) -> list[tuple[int, int]]:
        """Blocks ``start`` to ``stop`` as they become nodes: cut at the prompt's end if answers go first."""
        if self._generated_first:
            cut = -(-request.num_prompt_tokens // self._block_size)
            if start < cut < stop:
                return [(start, cut), (cut, stop)]
        return [(start, stop)]

    def fork(self, lease: Lease, request: CacheRequest) -> RadixLease:
        assert isinstance(lease, RadixLease)
        twin = RadixLease(request, list(lease.block_ids), lease.node)
        twin.num_published = lease.num_published
        twin.repeats = set(lease.repeats)
        self._tree.lock(lease.node)
        self._claim_path(request, lease.node, lease.num_published, is_use=False)
        for block_id in (*lease.block_ids[lease.num_published :], *lease.repeats):
            self._more_holders[block_id] = self._more_holders.get(block_id, 0) + 1
        return twin

    def holders(self, block_id: int) -> int:
        return 1 + self._more_holders.get(block_id, 0)

    def replace(self, lease: Lease, position: int, block_id: int) -> int:
        replaced, lease.block_ids[position] = lease.block_ids[position], block_id
        return replaced

    def drop(self, block_id: int) -> None:
        self._let_go([block_id])

    # -- the step --------------------------------------------------------------------------------

    def commit(self) -> None:
        self._give_back(self._tree.commit())
        for new in self._unannounced:
            self._announcer.stored(new.request, new.start, new.block_ids, new.after)

    def end_step(self) -> None:
        self._unannounced.clear()
        for source in self._kept:
            self._tree.unlock(source)
            self._give_back(self._tree.settle(source))
        self._kept.clear()

    def mark(self, lease: Lease) -> Mark:
        assert isinstance(lease, RadixLease)
        return Mark(len(lease.block_ids), lease.num_published, lease.node)

    def undo(self, lease: Lease, mark: Mark) -> None:
        assert isinstance(lease, RadixLease)
        self._unannounced = [new for new in self._unannounced if new.request is not lease.request]
        self._tree.unlock(lease.node, until=mark.place)  # pending nodes go; their blocks are private again
        lease.node = mark.place
        lease.repeats.difference_update(lease.block_ids[mark.num_published : lease.num_published])
        lease.num_published = mark.num_published
        taken = lease.block_ids[mark.num_blocks :]
        del lease.block_ids[mark.num_blocks :]
        self._give_back(taken)

    # -- giving back -----------------------------------------------------------------------------

    def release(self, lease: Lease, num_tokens: int) -> None:
        assert isinstance(lease, RadixLease)
        private = lease.block_ids[lease.num_published :]
        start = lease.num_published * self._block_size
        rest = num_tokens - start  # a block or more only if the index could not publish it
        if self._enabled and 0 < rest < self._block_size and self.holders(private[0]) == 1:
            run = self._codes.make(lease.request, start, num_tokens)
            tail = part_of(run, start, num_tokens)
            claim = self._claim_of(lease.request, lease.num_published, lease.num_published + 1)
            covered = self._tree.keep_stub(lease.node, tail, private[0], claim) if tail else None
            if covered is not None:
                private[:1] = covered
        self._let_go([*private, *lease.repeats])
        self._tree.unlock(lease.node)
        lease.block_ids.clear()

    def clear(self) -> None:
        dropped = self._tree.clear()
        if self._ledger is not None:
            self._ledger.take_back(dropped)
        self._free.append_all(dropped)
        self._codes.clear()
        self._announcer.cleared()

    # -- pins ------------------------------------------------------------------------------------

    def pin(self, name: str, request: CacheRequest, most: int) -> bool:
        root = self._tree.find_root(request.namespace)
        place: Node | None = None
        if root is not None:
            run = self._codes.find(request)
            walk = self._tree.walk(root, run, 0, len(run))
            nodes = [node for node in walk.nodes if node.pending_for is None]  # pending ones are the deepest
            inside = walk.inside if walk.inside is not None and walk.inside.pending_for is None else None
            new = sum(len(node.block_ids) for node in nodes if not _is_pinned(node))
            if inside is not None and not _is_pinned(inside):
                new += walk.num_inside
            if self._tree.idle.num_pinned_blocks + new > most:
                return False
            place = nodes[-1] if nodes else None
            if inside is not None:
                place = self._tree.split(inside, walk.num_inside)
        self._tree.pins.pin(name, place)
        return True

    def unpin(self, name: str) -> None:
        self._tree.pins.unpin(name)

    def num_pinned_blocks(self, name: str) -> int:
        return self._tree.pins.num_blocks(name)

    # -- the state and the laws ------------------------------------------------------------------

    def state(self, leases: list[Lease]) -> Iterator[object]:
        yield from self._tree.state()
        yield self._codes.state()
        yield [node.block_ids for node in self._kept]
        yield sorted(self._more_holders.items())
        if pins := self._tree.pins.state(lambda node: node.block_ids[-1]):
            yield pins
        for lease in leases:
            assert isinstance(lease, RadixLease)
            below = lease.node.block_ids[-1:]  # which node it is; a root has none
            yield lease.request.request_id, lease.block_ids, lease.num_published, below, sorted(lease.repeats)

    def check(self, leases: list[Lease], kept: list[int]) -> None:
        held = [lease for lease in leases if isinstance(lease, RadixLease)]
        self._tree.check([lease.node for lease in held] + self._kept)
        if self._ledger is not None:
            self._ledger.check(self._free)
        owned = list(self._free)
        owned += [block_id for node in self._tree.nodes() for block_id in node.block_ids]
        private = Counter(kept)
        for lease in held:
            private.update([*lease.block_ids[lease.num_published :], *lease.repeats])
            path = [block_id for node in reversed(list(lease.node.path())) for block_id in node.block_ids]
            table = lease.block_ids[: lease.num_published]
            law(len(path) == len(table), f"I3: a path of {len(path)} blocks under a table of {len(table)}")
            for shared, own in zip(path, table, strict=True):
                law(shared == own or own in lease.repeats, f"I3: table has {own}, its path {shared}")
        owned += private
        forked = {block_id: count - 1 for block_id, count in private.items() if count > 1}
        law(forked == self._more_holders, f"I3: {forked} held by forks, {self._more_holders} counted")
        law(
            sorted(owned) == list(range(self._num_blocks)),
            f"I1: {len(owned)} owned blocks of {self._num_blocks}, or one owned twice",
        )


def _is_pinned(node: Node) -> bool:
    return node.use is not None and node.use.pins > 0
