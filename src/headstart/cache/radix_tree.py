"""A compressed tree of token runs over blocks: its shape, its locks and the order of its eviction.

A node holds a run of whole blocks; its children begin where prompts part, at a block boundary, and
are found by the bytes of their first block.  A *stub* is a leaf of one partly filled block: the tail
that a finished request left.  Runs are compared as bytes, so following a long prompt is one memory
compare per node, and no Python loop runs over tokens or blocks.

Locks are counted on nodes.  Whoever holds a node locks the path from it to the root, so a node with
lock 0 is held by nothing and neither is anything below it.  Such nodes are *idle* and stand in an order
(`victims.py`) whose first is always a leaf: read with each node's blocks from the tail, it is the order of
eviction.

A split outlives the sibling that it was made for.  It costs a look-up, and no more: every node has a
block, so there are never more nodes than blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headstart.cache.blocks import Evictable, LinkedQueue, law
from headstart.cache.children import Children
from headstart.cache.eviction import Claim
from headstart.cache.fair import make_order
from headstart.cache.keys import CacheRequest, Namespace
from headstart.cache.shares import Ledger
from headstart.cache.tokens import TOKEN_BYTES
from headstart.cache.victims import Pins, VictimOrder
from headstart.config import CacheConfig
from headstart.errors import CacheError

_NO_CHILDREN: Children[Node] = Children()  # shared by all leaves and never written: most nodes are leaves


class Node(Evictable):
    """A run of tokens and the blocks that hold it.

    ``run`` may be longer than the blocks after an eviction; `RadixTree.run_of` cuts it when it is next
    read.  ``pending_for`` names the request whose step will write the blocks, None once written.
    """

    __slots__ = ("block_ids", "children", "lock", "parent", "pending_for", "run")

    def __init__(self, run: bytes, block_ids: list[int], lock: int = 0) -> None:
        self.prev = self.next = self.use = None  # what `Evictable` does: nodes are made by the thousand
        self.run = run
        self.block_ids = block_ids
        self.parent: Node | None = None
        self.children = _NO_CHILDREN
        self.lock = lock
        self.pending_for: str | None = None

    @property
    def num_blocks(self) -> int:
        """How many blocks are left of it."""
        return len(self.block_ids)

    @property
    def first_block_id(self) -> int:
        """The first of what is left."""
        return self.block_ids[0]

    def path(self) -> Iterator[Node]:
        """The node itself and those above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def __repr__(self) -> str:
        return f"Node(blocks={self.block_ids}, lock={self.lock}, children={len(self.children)})"


class Root(Node):
    """The top of one namespace's tree: no run, no blocks."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(b"", [])
        self.namespace = namespace


@dataclass(slots=True)
class Walk:
    """How far a run of tokens could be followed down the tree, by whole blocks.

    ``nodes`` matched whole, top down; then ``num_inside`` blocks of their child ``inside``, if any.
    ``offset`` is where in the query the match ended, in bytes.
    """

    nodes: list[Node]
    inside: Node | None
    num_inside: int
    offset: int


def common_tokens(a: bytes, b: bytes) -> int:
    """How many leading tokens two short runs share (the first differing byte, found by XOR)."""
    size = min(len(a), len(b))
    difference = int.from_bytes(a[:size], "big") ^ int.from_bytes(b[:size], "big")
    return (size - (difference.bit_length() + 7) // 8) // TOKEN_BYTES


class NodeShape:
    """A node continues its parent."""

    def num_below(self, node: Node) -> int:
        """See `Shape`."""
        return len(node.children)

    def above(self, node: Node) -> Node | None:
        """See `Shape`."""
        return node.parent


class RadixTree:
    """One tree per namespace, and one order of idle nodes for all of them.

    Blocks are only numbers here.  What a method drops or evicts it returns: from then on the caller
    owns those blocks.
    """

    def __init__(self, config: CacheConfig, ledger: Ledger | None = None) -> None:
        self.num_idle_blocks = 0
        self._config = config
        self._ledger = ledger
        self._block_bytes = config.block_size * TOKEN_BYTES
        self._roots: dict[Namespace, Root] = {}
        self.idle: VictimOrder[Node] = make_order(config, LinkedQueue(), NodeShape(), ledger)
        self.pins: Pins[Node, Node] = Pins(self.idle, Node.path)
        self._pending: list[Node] = []

    def find_root(self, namespace: Namespace) -> Root | None:
        """The top of the namespace's tree; None if nothing is cached in it."""
        return self._roots.get(namespace)

    def make_root(self, namespace: Namespace) -> Root:
        """The top of the namespace's tree, made if need be.  It goes when it is bare and unlocked."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Root(namespace)
        return root

    def idle_block_ids(self, request: CacheRequest | None = None, ahead: int = 0) -> list[int]:
        """Blocks that nothing holds, the next victim first; see `VictimOrder.each_block`."""
        if self._ledger is None:
            return [block_id for node in self.idle for block_id in reversed(node.block_ids)]
        blocks: dict[Node, Iterator[int]] = {}
        return [
            next(blocks.setdefault(node, reversed(node.block_ids)))
            for node in self.idle.each_block(request, ahead)
        ]

    # -- following a run -------------------------------------------------------------------------

    def walk(self, node: Node, query: bytes | bytearray, start: int, stop: int) -> Walk:
        """Follow bytes ``start`` to ``stop`` of ``query`` down from ``node``.  Changes nothing."""
        nodes: list[Node] = []
        offset, size = start, self._block_bytes
        while offset + size <= stop:
            child = node.children.get(bytes(query[offset : offset + size]))
            if child is None:
                break
            run = self.run_of(child)
            if not query.startswith(run, offset, stop):
                num_inside = self._common_blocks(run, query, offset, stop)
                return Walk(nodes, child, num_inside, offset + num_inside * size)
            nodes.append(child)
            node = child
            offset += len(run)
        return Walk(nodes, None, 0, offset)

    def _common_blocks(self, run: bytes, query: bytes | bytearray, offset: int, stop: int) -> int:
        """How many leading blocks of ``run`` stand in ``query`` at ``offset``: at least 1, not all.

        Bisection in which each stretch is compared once: one pass over memory.
        """
        size = self._block_bytes
        low, high = 1, min(len(run), stop - offset) // size
        while low < high:
            middle = (low + high + 1) // 2
            if query.startswith(run[low * size : middle * size], offset + low * size):
                low = middle
            else:
                high = middle - 1
        return low

    def neighbours(self, node: Node, rest: bytes) -> Iterator[tuple[bytes, Node]]:
        """The nearest committed children of ``node`` on either side of ``rest``, with their keys.

        In sorted order no key shares a longer prefix with ``rest`` than its nearest neighbours; those
        that do not begin with the same token are left out.
        """
        for keys in node.children.sides(rest):
            for key in keys:
                child = node.children[key]
                if child.pending_for is None:
                    yield key, child
                    break

    def run_of(self, node: Node) -> bytes:
        """The node's run, cut to the blocks that evictions have left."""
        size = len(node.block_ids) * self._block_bytes
        if len(node.run) > size:
            node.run = node.run[:size]
        return node.run

    def block_run(self, node: Node, index: int) -> bytes:
        """The tokens of the node's ``index``-th block."""
        return self.run_of(node)[index * self._block_bytes : (index + 1) * self._block_bytes]

    # -- locks and eviction ----------------------------------------------------------------------

    def lock(self, node: Node) -> None:
        """Hold the whole path from ``node`` to the root."""
        step: Node | None = node
        while step is not None:
            if step.lock:
                step.lock += 1
            else:
                self.lock_one(step)
            step = step.parent

    def lock_one(self, node: Node) -> None:
        """Hold ``node`` for someone who holds its parent already."""
        if node.lock == 0 and node.parent is not None:
            self.idle.remove(node)
            self.num_idle_blocks -= len(node.block_ids)
        node.lock += 1

    def unlock(self, node: Node, until: Node | None = None) -> None:
        """Let go of the path from ``node`` to the root, or to ``until``, which stays held.

        A pending node that nobody holds any more was never written and leaves the tree.
        """
        step: Node | None = node
        while step is not None and step is not until:
            above = step.parent
            step.lock -= 1
            if step.lock == 0:
                if isinstance(step, Root):
                    self._drop_if_bare(step)
                elif step.pending_for is not None:
                    self._detach(step)
                else:
                    self._make_idle(step)
            step = above

    def evict(self, count: int) -> list[int]:
        """Give up ``count`` blocks, always the last one of the leaf that is the next victim."""
        evicted: list[int] = []
        while len(evicted) < count:
            node = self.idle.first()
            if node is None or node.children:
                raise CacheError(f"no block can be evicted: the first idle node is {node!r}")
            tail, kept = node.block_ids, len(node.block_ids) - (count - len(evicted))
            if kept > 0:
                tail = tail[kept:]
                del node.block_ids[kept:]
            else:
                node.block_ids = []
            self.idle.evicted(node, len(tail))
            self.num_idle_blocks -= len(tail)
            tail.reverse()
            if evicted:
                evicted += tail
            else:
                evicted = tail
            if not node.block_ids:
                if node.use is not None and node.use.pins:
                    above = node.parent
                    self.pins.moved(node, above if above is not None and above.parent is not None else None)
                self.idle.remove(node)
                self._detach(node)
        return evicted

    def clear(self) -> list[int]:
        """Drop everything; nothing may be locked."""
        dropped = self.idle_block_ids()
        self.idle = make_order(self._config, LinkedQueue(), NodeShape(), self._ledger)
        self.pins = Pins(self.idle, Node.path)
        self._roots = {}
        self.num_idle_blocks = 0
        return dropped

    def _make_idle(self, node: Node) -> None:
        self.idle.append(node)
        self.num_idle_blocks += len(node.block_ids)

    # -- growing ---------------------------------------------------------------------------------

    def grow(self, parent: Node, run: bytes, block_ids: list[int], pending_for: str) -> Node:
        """A new node under ``parent``, held once and pending until `commit`."""
        node = Node(run, block_ids, lock=1)
        node.pending_for = pending_for
        self._attach(parent, node)
        self._pending.append(node)
        return node

    def keep_stub(self, parent: Node, run: bytes, block_id: int, claim: Claim | None) -> list[int] | None:
        """Hang a partly filled block under ``parent``, idle, in place of the stubs that it covers.

        ``claim`` is what its request wants of it, if the order of eviction asks for that.
        Returns the blocks of those; None if the tree has as much already, and nothing has changed.
        """
        if run in parent.children or self.is_covered(parent, run):
            return None
        stub = Node(run, [block_id])
        self._attach(parent, stub)
        if claim is not None:
            self.idle.claim(stub, claim)
        self._make_idle(stub)
        return self._drop_covered_stubs(stub)

    def split(self, node: Node, num_blocks: int) -> Node:
        """Cut ``node`` behind its first ``num_blocks`` blocks; returns the new upper part.

        ``node`` itself stays the lower part, so that whoever ends there still does.
        """
        run, size = self.run_of(node), num_blocks * self._block_bytes
        parent = node.parent
        assert parent is not None
        upper = Node(run[:size], node.block_ids[:num_blocks], lock=node.lock)
        upper.pending_for = node.pending_for
        node.run, node.block_ids = run[size:], node.block_ids[num_blocks:]
        self._attach(parent, upper)
        self._attach(upper, node)
        self.idle.split(node, upper, idle=node.lock == 0)
        if node.pending_for is not None:
            self._pending.append(upper)
        return upper

    def commit(self) -> list[int]:
        """Nothing is pending any more; returns the blocks of stubs that are now covered."""
        for node in self._pending:
            node.pending_for = None
        dropped: list[int] = []
        for node in self._pending:
            if node.parent is not None:  # otherwise it was withdrawn, or has been merged
                dropped += self._drop_covered_stubs(node)
                self._merge_into(node)
        self._pending.clear()
        return dropped

    def settle(self, node: Node) -> list[int]:
        """Mend the tree around a node that was cut off only to be held; returns what is superfluous."""
        if len(node.children) == 1:
            self._merge_into(next(iter(node.children.values())))
        elif node.parent is not None and self.is_covered(node.parent, node.run):
            return self._drop_stub(node)
        return []

    # -- shape -----------------------------------------------------------------------------------

    def _attach(self, parent: Node, node: Node) -> None:
        """Hang ``node`` under ``parent``, in place of whatever began with the same block."""
        if parent.children is _NO_CHILDREN:
            parent.children = Children()
        parent.children.put(node.run[: self._block_bytes], node)
        node.parent = parent

    def _detach(self, node: Node) -> None:
        parent = node.parent
        if node.children or parent is None:
            raise CacheError(f"{node!r} cannot leave the tree: only leaves can")
        parent.children.drop(node.run[: self._block_bytes])
        node.parent = None
        self._drop_if_bare(parent)
        self.idle.review(parent)

    def _drop_if_bare(self, node: Node) -> None:
        """Forget a namespace whose tree is empty, so that salts do not pile up."""
        if isinstance(node, Root) and node.lock == 0 and not node.children:
            del self._roots[node.namespace]

    def _merge_into(self, node: Node) -> None:
        """Join ``node`` with its parent where nothing tells them apart: an only child, equally locked."""
        parent = node.parent
        if parent is None or parent.parent is None or len(parent.children) != 1 or parent.lock != node.lock:
            return
        if (
            parent.pending_for is not None
            or node.pending_for is not None
            or len(node.run) < self._block_bytes
            or not self.idle.are_alike(node, parent)
        ):
            return
        node.run = self.run_of(parent) + self.run_of(node)
        parent.block_ids += node.block_ids
        node.block_ids = parent.block_ids
        if node.lock == 0:
            self.idle.remove(parent)  # the older place: copying from a block is no use of what follows it
        self._attach(parent.parent, node)
        parent.parent = None
        self.idle.joined(node, parent)

    @staticmethod
    def is_covered(parent: Node, run: bytes) -> bool:
        """Whether a child of ``parent`` begins with ``run`` and goes on."""
        return parent.children.has_longer(run)

    def _drop_covered_stubs(self, node: Node) -> list[int]:
        """Drop the stubs beside ``node`` whose tokens it has too, unless they are held."""
        parent = node.parent
        if parent is None or len(parent.children) == 1:
            return []
        dropped: list[int] = []
        for key in parent.children.shorter(node.run[: self._block_bytes]):
            dropped += self._drop_stub(parent.children[key])
        return dropped

    def _drop_stub(self, stub: Node) -> list[int]:
        if stub.lock > 0:
            return []
        self.idle.remove(stub)
        self.num_idle_blocks -= 1
        self._detach(stub)
        return stub.block_ids

    # -- the state and the laws ------------------------------------------------------------------

    def state(self) -> Iterator[object]:
        """The trees in preorder, the namespaces by number; then which nodes are idle, and which pending."""
        for number, root in enumerate(self._roots.values()):
            yield number, root.lock, root.namespace.adapter
            frontier: list[Node] = [root]
            while frontier:
                node = frontier.pop()
                frontier += [node.children[key] for key in sorted(node.children, reverse=True)]
                yield node.block_ids, node.lock, node.pending_for, len(node.children), len(self.run_of(node))
                yield self.run_of(node)
                if node.use is not None:
                    yield node.use.state()
        yield from self.idle.state()
        yield [node.block_ids for node in self.idle]
        yield [node.block_ids for node in self._pending if node.parent is not None]

    def nodes(self) -> list[Node]:
        """Every node but the roots, in no particular order."""
        found: list[Node] = []
        frontier: list[Node] = list(self._roots.values())
        while frontier:
            node = frontier.pop()
            frontier.extend(node.children.values())
            if node.parent is not None:
                found.append(node)
        return found

    def check(self, holders: Iterable[Node]) -> None:
        """Prove the tree's laws, given the nodes that are held (one entry per holder)."""
        nodes = self.nodes()
        locks: dict[int, int] = {}
        for holder in holders:
            for node in holder.path():
                locks[id(node)] = locks.get(id(node), 0) + 1
        for node in nodes:
            self._check_shape(node)
            law(node.lock == locks.pop(id(node), 0), f"I3: {node!r} is locked by another number of holders")
        law(not locks, f"I3: {len(locks)} held nodes have left the tree")
        order = {id(node): place for place, node in enumerate(self.idle)}
        law(len(order) == sum(node.lock == 0 for node in nodes), "I1: exactly the nodes with lock 0 are idle")
        for node in nodes:
            parent = node.parent
            if node.lock == 0:
                law(id(node) in order, f"I1: {node!r} is not held and not idle")
                below = parent is None or id(parent) not in order or order[id(node)] < order[id(parent)]
                law(below, f"I7: {node!r} would outlive its parent")
        idle_blocks = len(self.idle_block_ids())
        law(idle_blocks == self.num_idle_blocks, f"I1: {idle_blocks} idle, {self.num_idle_blocks} counted")
        self.idle.check(nodes)

    def _check_shape(self, node: Node) -> None:
        parent, run = node.parent, self.run_of(node)
        assert parent is not None
        found = parent.children.get(run[: self._block_bytes])
        law(found is node, f"I2: {node!r} is not found under its first block")
        whole = len(run) == len(node.block_ids) * self._block_bytes
        stub = len(node.block_ids) == 1 and 0 < len(run) < self._block_bytes and not node.children
        law(bool(node.block_ids) and (whole or stub), f"I2: {node!r} has a run of {len(run)} bytes")
        law(
            parent.pending_for is None or node.pending_for is not None,
            f"I4: {node!r} is committed below the pending {parent!r}",
        )
