"""Blocks, the queue of those that can be had, and the pool that owns both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from headstart.cache.eviction import Use
from headstart.errors import CacheError


class Linked:
    """Something that can stand in one `LinkedQueue`; the queue alone touches the links."""

    __slots__ = ("next", "prev")

    def __init__(self) -> None:
        self.prev: Any = None
        self.next: Any = None


Item = TypeVar("Item", bound=Linked)


class LinkedQueue(Generic[Item]):
    """A doubly linked list through its items' own links.

    Removal from the middle, which every hit on a free block needs, is O(1) and allocates nothing.
    Raises ``CacheError`` when an item is put in twice or taken out without being in.
    """

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._ends = Linked()  # one sentinel closes the ring: its next is the head, its prev the tail
        self._ends.prev = self._ends.next = self._ends
        self._length = 0
        self.append_all(items)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Item]:
        item = self._ends.next
        while item is not self._ends:
            following = item.next
            yield item
            item = following

    def __contains__(self, item: Item) -> bool:
        return item.next is not None

    def _link(self, item: Item, before: Linked) -> None:
        if item.next is not None:
            raise CacheError(f"{item!r} is in the queue already")
        item.prev, item.next = before.prev, before
        before.prev.next = item
        before.prev = item
        self._length += 1

    def _link_all(self, items: Iterable[Item], before: Linked) -> None:
        last, count = before.prev, 0
        try:
            for item in items:
                if item.next is not None:
                    raise CacheError(f"{item!r} is in the queue already")
                item.prev, item.next = last, before
                last.next = last = item
                count += 1
        finally:  # the ring is closed, whatever came in between
            before.prev = last
            self._length += count

    def append(self, item: Item) -> None:
        """Put at the tail: taken last."""
        self._link(item, self._ends)

    def append_all(self, items: Iterable[Item]) -> None:
        """Put at the tail, in the order given: the last is taken last."""
        self._link_all(items, self._ends)

    def prepend_all(self, items: Iterable[Item]) -> None:
        """Put at the front, in the order given: the first is taken next."""
        self._link_all(items, self._ends.next)

    def insert_after(self, place: Item, item: Item) -> None:
        """Put directly behind ``place``."""
        self._link(item, place.next)

    def remove(self, item: Item) -> None:
        """Take out, wherever it stands."""
        if item.next is None:
            raise CacheError(f"{item!r} is not in the queue")
        item.prev.next, item.next.prev = item.next, item.prev
        item.prev = item.next = None
        self._length -= 1

    def remove_all(self, items: Iterable[Item]) -> None:
        """Take out each of them."""
        count = 0
        try:
            for item in items:
                before, behind = item.prev, item.next
                if behind is None:
                    raise CacheError(f"{item!r} is not in the queue")
                before.next, behind.prev = behind, before
                item.prev = item.next = None
                count += 1
        finally:  # those before one that was not in are out
            self._length -= count

    def first(self) -> Item | None:
        """The head, left where it is; None when empty."""
        head = self._ends.next
        return None if head is self._ends else head

    def popleft(self) -> Item:
        """Take the head.  Raises ``CacheError`` when empty."""
        return self.take(1)[0]

    def take(self, count: int) -> list[Item]:
        """Take ``count`` from the head on.  Raises ``CacheError``, and takes none, when fewer are left."""
        if count > self._length:
            raise _no_room()
        taken: list[Item] = []
        item = self._ends.next
        for _ in range(count):
            taken.append(item)
            following = item.next
            item.prev = item.next = None
            item = following
        self._ends.next, item.prev = item, self._ends
        self._length -= count
        return taken


class FreeIds:
    """The free blocks, by id, of an index that never takes one out of the middle."""

    def __init__(self, num_blocks: int) -> None:
        self._ids = list(reversed(range(num_blocks)))  # the last is taken next

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[int]:
        return reversed(self._ids)

    def take(self, count: int) -> list[int]:
        """Take ``count`` from the head on.  Raises ``CacheError``, and takes none, when fewer are left."""
        rest = len(self._ids) - count
        if rest < 0:
            raise _no_room()
        taken = self._ids[rest:]
        del self._ids[rest:]
        taken.reverse()
        return taken

    def append_all(self, ids: Sequence[int]) -> None:
        """Put at the tail, in the order given: the last is taken last.  Moves all that are there."""
        self._ids[:0] = reversed(ids)

    def prepend_all(self, ids: Sequence[int]) -> None:
        """Put at the front, in the order given: the first is taken next."""
        self._ids += reversed(ids)


def _no_room() -> CacheError:
    return CacheError("no free block is left: whoever takes must ask for room first")


class Evictable(Linked):
    """What an index caches and evicts; ``use`` is None where nothing about it needs to be remembered."""

    __slots__ = ("use",)

    def __init__(self) -> None:
        super().__init__()
        self.use: Use | None = None

    @property
    def num_blocks(self) -> int:
        """How many blocks hold it."""
        return 1

    @property
    def first_block_id(self) -> int:
        """The first of them."""
        raise NotImplementedError


class Block(Evictable):
    """One block of KV memory, ``block_size`` token slots that belong together, as the `hash` index sees it.

    The radix index counts on nodes what is counted here, and knows blocks by their ids alone.
    ``ref_count`` is the number of block tables that hold it, ``digest`` makes it findable, ``parent`` is
    the digest before it in the chain, ``run`` (its tokens) and ``identity`` (its keys beside them) are what
    the digest was made of, because a digest alone proves nothing, ``pending_for`` names the request whose
    K and V of the current step will fill it, until that step commits.
    """

    __slots__ = ("block_id", "digest", "identity", "parent", "pending_for", "ref_count", "run")

    def __init__(self, block_id: int) -> None:
        super().__init__()
        self.block_id = block_id
        self.ref_count = 0
        self.digest: bytes | None = None
        self.parent: bytes | None = None
        self.run = b""
        self.identity: tuple[object, ...] | None = None
        self.pending_for: str | None = None

    @property
    def first_block_id(self) -> int:
        """Its own."""
        return self.block_id

    def __repr__(self) -> str:
        return f"Block({self.block_id}, ref_count={self.ref_count})"


class BlockPool:
    """All blocks, made once; ``free`` queues the ones no table holds, next to be taken first."""

    def __init__(self, num_blocks: int) -> None:
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self.free: LinkedQueue[Block] = LinkedQueue(self.blocks)

    def __len__(self) -> int:
        return len(self.blocks)


def law(holds: bool, broken: str) -> None:
    """Raise ``CacheError`` unless the law holds."""
    if not holds:
        raise CacheError(f"law {broken}")
