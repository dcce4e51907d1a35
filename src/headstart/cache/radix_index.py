"""The `radix` index: a compressed tree of token runs over blocks, as SGLang's RadixAttention does.

A node holds a run of whole blocks; its children begin where prompts part, at a block boundary, and
are found by the bytes of their first block.  A *stub* is a leaf of one partly filled block: the tail
that a finished request left.  Runs are compared as bytes, so matching a long prompt is one memory
compare per node, and no Python loop runs over tokens or blocks.

Who owns a block: the pool's free queue, or one node, or (privately) one request.  A request's
filled blocks pass to the tree when they are published; a block that repeats what the tree has stays
private to its request (a tree cannot hold a path twice) and is freed with it.

Locks are counted on nodes.  A request locks the path from its deepest node to the root, so a node
with lock 0 is held by nothing and neither is anything below it.  Such nodes stand in ``_idle`` in the
order in which they fell idle, deeper before shallower; so the first is always a leaf, and the queue,
read with each node's blocks from the tail, *is* the LRU order of eviction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sortedcontainers import SortedDict

from headstart.cache.blocks import BlockPool, Linked, LinkedQueue
from headstart.cache.index import Lease, Mark, Match, PartialBlock
from headstart.cache.keys import TOKEN_BYTES, CacheRequest, Namespace
from headstart.config import CacheConfig
from headstart.errors import CacheError

_NO_CHILDREN: SortedDict = SortedDict()  # shared by all leaves and never written: most nodes are leaves


class Node(Linked):
    """A run of tokens and the blocks that hold it.

    ``run`` may be longer than the blocks after an eviction; `RadixIndex._trim` cuts it when it is
    next read.  ``pending_for`` names the request whose step will write the blocks, None once written.
    """

    __slots__ = ("block_ids", "children", "lock", "parent", "pending_for", "run")

    def __init__(self, run: bytes, block_ids: list[int], lock: int = 0) -> None:
        super().__init__()
        self.run = run
        self.block_ids = block_ids
        self.parent: Node | None = None
        self.children = _NO_CHILDREN
        self.lock = lock
        self.pending_for: str | None = None

    def __repr__(self) -> str:
        return f"Node(blocks={self.block_ids}, lock={self.lock}, children={len(self.children)})"


class Root(Node):
    """The top of one namespace's tree: no run, no blocks."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(b"", [])
        self.namespace = namespace


@dataclass(frozen=True, slots=True)
class _Walk:
    """How far a run of tokens could be followed down the tree, by whole blocks.

    ``nodes`` matched whole, top down; then ``num_inside`` blocks of their child ``inside``, if any.
    ``offset`` is the number of bytes matched.
    """

    nodes: list[Node]
    inside: Node | None
    num_inside: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a match ended (None: at the root), and the node that holds the block to copy from."""

    node: Node | None = None
    inside: Node | None = None
    num_inside: int = 0
    source: Node | None = None


class RadixLease(Lease):
    """A lease that knows its deepest node, and which published blocks stayed private as repeats."""

    __slots__ = ("node", "repeats")

    def __init__(self, request: CacheRequest, block_ids: list[int], node: Node) -> None:
        super().__init__(request, block_ids)
        self.node = node
        self.repeats: set[int] = set()


def _common_tokens(a: bytes, b: bytes) -> int:
    """How many leading tokens two short runs share (the first differing byte, found by XOR)."""
    size = min(len(a), len(b))
    difference = int.from_bytes(a[:size], "big") ^ int.from_bytes(b[:size], "big")
    return (size - (difference.bit_length() + 7) // 8) // TOKEN_BYTES


def _path(node: Node | None) -> Iterator[Node]:
    """From ``node`` up to, but without, the root."""
    while node is not None and node.parent is not None:
        yield node
        node = node.parent


class RadixIndex:
    """Keeps the `PrefixIndex` protocol with a tree per namespace."""

    def __init__(self, config: CacheConfig, pool: BlockPool) -> None:
        self._enabled = config.enable_prefix_caching
        self._block_size = config.block_size
        self._block_bytes = config.block_size * TOKEN_BYTES
        self._pool = pool
        self._roots: dict[Namespace, Root] = {}
        self._idle: LinkedQueue[Node] = LinkedQueue()
        self._num_idle_blocks = 0
        self._pending: list[Node] = []
        self._kept: list[Node] = []  # locked until the step ends, because its copies read them

    @property
    def num_free_blocks(self) -> int:
        return len(self._pool.free) + self._num_idle_blocks

    def free_block_ids(self) -> list[int]:
        unused = [block.block_id for block in self._pool.free]
        return unused + [block_id for node in self._idle for block_id in reversed(node.block_ids)]

    # -- reading ---------------------------------------------------------------------------------

    def match(self, request: CacheRequest, limit: int) -> Match:
        root = self._roots.get(request.namespace)
        if root is None or limit < 1:
            return Match(place=_Place(root))
        query = request.run(0, limit)
        walk = self._walk(root, query)
        block_ids: list[int] = []
        for node in walk.nodes:
            block_ids += node.block_ids
        touched = walk.nodes
        if walk.inside is not None:
            block_ids += walk.inside.block_ids[: walk.num_inside]
            touched = [*touched, walk.inside]
        shared_with = frozenset(node.pending_for for node in touched if node.pending_for is not None)
        last = walk.nodes[-1] if walk.nodes else root
        rest = query[walk.offset : walk.offset + self._block_bytes]
        copy, source = self._partial(last, walk, rest)
        return Match(block_ids, copy, shared_with, _Place(last, walk.inside, walk.num_inside, source))

    def _walk(self, node: Node, query: bytes) -> _Walk:
        nodes: list[Node] = []
        offset, size = 0, self._block_bytes
        while offset + size <= len(query):
            child = node.children.get(query[offset : offset + size])
            if child is None:
                break
            run = self._trim(child)
            if not query.startswith(run, offset):
                num_inside = self._common_blocks(run, query, offset)
                return _Walk(nodes, child, num_inside, offset + num_inside * size)
            nodes.append(child)
            node = child
            offset += len(run)
        return _Walk(nodes, None, 0, offset)

    def _common_blocks(self, run: bytes, query: bytes, offset: int) -> int:
        """How many leading blocks of ``run`` stand in ``query`` at ``offset``: at least 1, not all.

        Bisection in which each stretch is compared once: one pass over memory.
        """
        size = self._block_bytes
        low, high = 1, min(len(run), len(query) - offset) // size
        while low < high:
            middle = (low + high + 1) // 2
            if query.startswith(run[low * size : middle * size], offset + low * size):
                low = middle
            else:
                high = middle - 1
        return low

    def _partial(self, last: Node, walk: _Walk, rest: bytes) -> tuple[PartialBlock | None, Node | None]:
        """The committed block behind the walk that shares the most tokens with ``rest``, and its node."""
        if walk.inside is None:
            candidates = [(child, 0) for child in self._neighbours(last, rest)] if rest else []
        else:
            candidates = [(walk.inside, walk.num_inside)] if walk.inside.pending_for is None else []
        best: tuple[PartialBlock | None, Node | None] = (None, None)
        longest = 0
        for node, index in candidates:
            block = self._trim(node)[index * self._block_bytes : (index + 1) * self._block_bytes]
            common = _common_tokens(block, rest)
            if common > longest:
                longest = common
                best = PartialBlock(node.block_ids[index], common), node
        return best

    def _neighbours(self, node: Node, rest: bytes) -> Iterator[Node]:
        """The nearest committed children on either side of ``rest`` in byte order.

        In sorted order no key shares a longer prefix with ``rest`` than its nearest neighbours.
        """
        children = node.children
        place = children.bisect_left(rest)
        for indices in (range(place, len(children)), range(place - 1, -1, -1)):
            for index in indices:
                child: Node = children.peekitem(index)[1]
                if child.pending_for is None:
                    yield child
                    break

    def _trim(self, node: Node) -> bytes:
        """The node's run, cut to the blocks that evictions have left."""
        size = len(node.block_ids) * self._block_bytes
        if len(node.run) > size:
            node.run = node.run[:size]
        return node.run

    def cost(self, match: Match) -> int:
        place = match.place or _Place()
        cost = sum(len(node.block_ids) for node in _path(place.node) if node.lock == 0)
        if place.inside is not None and place.inside.lock == 0:
            cost += place.num_inside
        if match.copy is not None and place.source is not None and place.source.lock == 0:
            cost += 1
        return cost

    # -- taking ----------------------------------------------------------------------------------

    def admit(self, request: CacheRequest, match: Match) -> RadixLease:
        place = match.place or _Place()
        node = place.node
        if node is None:
            node = self._roots.setdefault(request.namespace, Root(request.namespace))
        if place.inside is not None:
            node = self._split(place.inside, place.num_inside)
        self._lock(node)
        if match.copy is not None and place.source is not None:
            source = place.source
            if len(source.block_ids) > 1:
                source = self._split(source, 1)  # keep that one block, not all that follow it
            self._lock(source)
            self._kept.append(source)
        return RadixLease(request, list(match.block_ids), node)

    def take(self, lease: Lease, count: int) -> None:
        free = self._pool.free
        for _ in range(count):
            lease.block_ids.append(free.popleft().block_id if len(free) else self._evict())

    def _evict(self) -> int:
        """Take the last block of the leaf that fell idle longest ago."""
        node = self._idle.first()
        if node is None or node.children:
            raise CacheError(f"no block can be evicted: the first idle node is {node!r}")
        block_id = node.block_ids.pop()
        self._num_idle_blocks -= 1
        if not node.block_ids:
            self._idle.remove(node)
            self._detach(node)
        return block_id

    def publish(self, lease: Lease, num_blocks: int) -> frozenset[str]:
        assert isinstance(lease, RadixLease)
        if not self._enabled or num_blocks <= lease.num_published:
            return frozenset()
        request, size = lease.request, self._block_size
        run = request.run(lease.num_published * size, num_blocks * size)
        block_ids = lease.block_ids[lease.num_published : num_blocks]
        walk = self._walk(lease.node, run)
        known = walk.nodes
        if walk.inside is not None:
            known = [*known, self._split(walk.inside, walk.num_inside)]
        repeated = walk.offset // self._block_bytes
        lease.repeats.update(block_ids[:repeated])
        for node in known:
            self._lock_one(node)
            lease.node = node
        if repeated < len(block_ids):
            node = Node(run[walk.offset :], block_ids[repeated:], lock=1)
            node.pending_for = request.request_id
            self._attach(lease.node, node)
            self._pending.append(node)
            lease.node = node
        lease.num_published = num_blocks
        return frozenset(node.pending_for for node in known if node.pending_for is not None)

    # -- the step --------------------------------------------------------------------------------

    def commit(self) -> None:
        for node in self._pending:
            node.pending_for = None
        for node in self._pending:
            if node.parent is not None:
                self._drop_covered_stubs(node)
                self._merge_into(node)

    def end_step(self) -> None:
        self._pending.clear()
        for source in self._kept:
            self._unlock(source)
            if len(source.children) == 1:
                self._merge_into(source.children.peekitem(0)[1])
            elif source.parent is not None and self._covered(source.parent, source.run):
                self._drop_stub(source)
        self._kept.clear()

    def mark(self, lease: Lease) -> Mark:
        assert isinstance(lease, RadixLease)
        return Mark(len(lease.block_ids), lease.num_published, lease.node)

    def undo(self, lease: Lease, mark: Mark) -> None:
        assert isinstance(lease, RadixLease)
        self._unlock(lease.node, until=mark.place)
        lease.node = mark.place
        lease.repeats.difference_update(lease.block_ids[mark.num_published : lease.num_published])
        lease.num_published = mark.num_published
        taken = lease.block_ids[mark.num_blocks :]
        del lease.block_ids[mark.num_blocks :]
        self._pool.free.prepend_all(self._pool.blocks[block_id] for block_id in taken)

    # -- giving back -----------------------------------------------------------------------------

    def release(self, lease: Lease, num_tokens: int) -> None:
        assert isinstance(lease, RadixLease)
        private = lease.block_ids[lease.num_published :]
        tail = num_tokens - lease.num_published * self._block_size
        if self._enabled and tail > 0 and self._keep_tail(lease, tail, private[0]):
            del private[0]
        private.extend(lease.repeats)
        self._pool.free.prepend_all(self._pool.blocks[block_id] for block_id in private)
        self._unlock(lease.node)
        lease.block_ids.clear()

    def _keep_tail(self, lease: RadixLease, num_tokens: int, block_id: int) -> bool:
        """Hang the partly filled last block under the lease's node, unless the tree has as much."""
        start = lease.num_published * self._block_size
        run = lease.request.run(start, start + num_tokens)
        if run in lease.node.children or self._covered(lease.node, run):
            return False
        stub = Node(run, [block_id])
        self._attach(lease.node, stub)
        self._make_idle(stub)
        self._drop_covered_stubs(stub)
        return True

    def clear(self) -> None:
        for block_id in self.free_block_ids()[len(self._pool.free) :]:
            self._pool.free.append(self._pool.blocks[block_id])
        self._idle = LinkedQueue()
        self._num_idle_blocks = 0
        self._roots.clear()

    # -- locks -----------------------------------------------------------------------------------

    def _lock(self, node: Node) -> None:
        step: Node | None = node
        while step is not None:
            self._lock_one(step)
            step = step.parent

    def _lock_one(self, node: Node) -> None:
        if node.lock == 0 and node.parent is not None:
            self._idle.remove(node)
            self._num_idle_blocks -= len(node.block_ids)
        node.lock += 1

    def _unlock(self, node: Node, until: Node | None = None) -> None:
        """Unlock from ``node`` up to the root, or up to ``until``, which stays locked."""
        step: Node | None = node
        while step is not None and step is not until:
            above = step.parent
            step.lock -= 1
            if step.lock == 0:
                if isinstance(step, Root):
                    self._drop_if_bare(step)
                elif step.pending_for is not None:
                    self._detach(step)  # never written, so not kept: its blocks are its request's again
                else:
                    self._make_idle(step)
            step = above

    def _make_idle(self, node: Node) -> None:
        self._idle.append(node)
        self._num_idle_blocks += len(node.block_ids)

    # -- the tree's shape ------------------------------------------------------------------------

    def _attach(self, parent: Node, node: Node) -> None:
        """Hang ``node`` under ``parent``, in place of whatever began with the same block."""
        if parent.children is _NO_CHILDREN:
            parent.children = SortedDict()
        parent.children[node.run[: self._block_bytes]] = node
        node.parent = parent

    def _detach(self, node: Node) -> None:
        parent = node.parent
        if node.children or parent is None:
            raise CacheError(f"{node!r} cannot leave the tree: only leaves can")
        del parent.children[node.run[: self._block_bytes]]
        node.parent = None
        self._drop_if_bare(parent)

    def _drop_if_bare(self, node: Node) -> None:
        """Forget a namespace whose tree is empty, so that salts do not pile up."""
        if isinstance(node, Root) and node.lock == 0 and not node.children:
            del self._roots[node.namespace]

    def _split(self, node: Node, num_blocks: int) -> Node:
        """Cut ``node`` behind its first ``num_blocks`` blocks; returns the new upper part.

        ``node`` itself stays the lower part, so that whoever ends there still does.
        """
        run, size = self._trim(node), num_blocks * self._block_bytes
        parent = node.parent
        assert parent is not None
        upper = Node(run[:size], node.block_ids[:num_blocks], lock=node.lock)
        upper.pending_for = node.pending_for
        node.run, node.block_ids = run[size:], node.block_ids[num_blocks:]
        self._attach(parent, upper)
        self._attach(upper, node)
        if node.lock == 0:
            self._idle.insert_after(node, upper)
        if node.pending_for is not None:
            self._pending.append(upper)
        return upper

    def _merge_into(self, node: Node) -> None:
        """Join ``node`` with its parent where nothing tells them apart: an only child, equally locked."""
        parent = node.parent
        if parent is None or parent.parent is None or len(parent.children) != 1 or parent.lock != node.lock:
            return
        if (
            parent.pending_for is not None
            or node.pending_for is not None
            or len(node.run) < self._block_bytes
        ):
            return
        node.run = self._trim(parent) + self._trim(node)
        parent.block_ids += node.block_ids
        node.block_ids = parent.block_ids
        if node.lock == 0:
            self._idle.remove(node)
            self._idle.insert_after(parent, node)
            self._idle.remove(parent)
        self._attach(parent.parent, node)
        parent.parent = None

    @staticmethod
    def _covered(parent: Node, run: bytes) -> bool:
        """Whether a child of ``parent`` begins with ``run`` and goes on: it sorts directly behind it."""
        children = parent.children
        place = children.bisect_right(run)
        return place < len(children) and bool(children.peekitem(place)[0].startswith(run))

    def _drop_covered_stubs(self, node: Node) -> None:
        """Free the stubs beside ``node`` whose tokens it has too, unless they are in use."""
        parent = node.parent
        if parent is None or len(parent.children) == 1:
            return
        key = node.run[: self._block_bytes]
        for size in range(TOKEN_BYTES, len(key), TOKEN_BYTES):
            stub = parent.children.get(key[:size])
            if stub is not None:
                self._drop_stub(stub)

    def _drop_stub(self, stub: Node) -> None:
        if stub.lock == 0:
            self._idle.remove(stub)
            self._num_idle_blocks -= 1
            self._detach(stub)
            self._pool.free.prepend_all([self._pool.blocks[stub.block_ids[0]]])

    # -- the laws --------------------------------------------------------------------------------

    def check(self, leases: list[Lease]) -> None:
        nodes: list[Node] = []
        frontier: list[Node] = list(self._roots.values())
        while frontier:
            node = frontier.pop()
            frontier.extend(node.children.values())
            if node.parent is not None:
                nodes.append(node)
        self._check_shape(nodes)
        self._check_locks(nodes, leases)
        self._check_owners(nodes, leases)

    def _check_shape(self, nodes: list[Node]) -> None:
        for node in nodes:
            parent, run = node.parent, self._trim(node)
            assert parent is not None
            found = parent.children.get(run[: self._block_bytes])
            _law(found is node, f"I2: {node!r} is not found under its first block")
            whole = len(run) == len(node.block_ids) * self._block_bytes
            stub = len(node.block_ids) == 1 and 0 < len(run) < self._block_bytes and not node.children
            _law(bool(node.block_ids) and (whole or stub), f"I2: {node!r} has a run of {len(run)} bytes")
            _law(
                parent.pending_for is None or node.pending_for is not None,
                f"I4: {node!r} is committed below the pending {parent!r}",
            )
        order = {id(node): place for place, node in enumerate(self._idle)}
        idle_blocks = sum(len(node.block_ids) for node in self._idle)
        _law(idle_blocks == self._num_idle_blocks, f"I1: {idle_blocks} idle, {self._num_idle_blocks} counted")
        for node in nodes:
            _law((id(node) in order) == (node.lock == 0), f"I1: {node!r} is idle exactly when not locked")
            if node.lock == 0 and isinstance(node.parent, Node) and id(node.parent) in order:
                _law(order[id(node)] < order[id(node.parent)], f"I7: {node!r} would outlive its parent")

    def _check_locks(self, nodes: list[Node], leases: list[Lease]) -> None:
        locks: dict[int, int] = {}
        ends = [lease.node for lease in leases if isinstance(lease, RadixLease)] + self._kept
        for end in ends:
            for node in _path(end):
                locks[id(node)] = locks.get(id(node), 0) + 1
        for node in nodes:
            _law(node.lock == locks.pop(id(node), 0), f"I3: {node!r} is locked by another number of requests")
        _law(not locks, f"I3: {len(locks)} locked nodes have left the tree")

    def _check_owners(self, nodes: list[Node], leases: list[Lease]) -> None:
        owned = [block.block_id for block in self._pool.free]
        owned += [block_id for node in nodes for block_id in node.block_ids]
        for lease in leases:
            assert isinstance(lease, RadixLease)
            owned += [*lease.block_ids[lease.num_published :], *lease.repeats]
            path = [block_id for node in reversed(list(_path(lease.node))) for block_id in node.block_ids]
            table = lease.block_ids[: lease.num_published]
            _law(len(path) == len(table), f"I3: a path of {len(path)} blocks under a table of {len(table)}")
            for shared, own in zip(path, table, strict=True):
                _law(shared == own or own in lease.repeats, f"I3: table has {own}, its path {shared}")
        _law(
            sorted(owned) == list(range(len(self._pool))),
            f"I1: {len(owned)} owned blocks of {len(self._pool)}, or one owned twice",
        )


def _law(holds: bool, broken: str) -> None:
    if not holds:
        raise CacheError(f"law {broken}")
