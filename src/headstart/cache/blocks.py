"""Blocks, the queue of those that can be had, and the pool that owns both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

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
        for item in items:
            self.append(item)

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

    def append(self, item: Item) -> None:
        """Put at the tail: taken last."""
        self._link(item, self._ends)

    def prepend_all(self, items: Iterable[Item]) -> None:
        """Put at the front, in the order given: the first is taken next."""
        head = self._ends.next
        for item in items:
            self._link(item, head)

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

    def first(self) -> Item | None:
        """The head, left where it is; None when empty."""
        head = self._ends.next
        return None if head is self._ends else head

    def popleft(self) -> Item:
        """Take the head.  Raises ``CacheError`` when empty."""
        head: Item = self._ends.next
        if head is self._ends:
            raise CacheError("no free block is left: whoever takes must ask for room first")
        self.remove(head)
        return head


class Block(Linked):
    """One block of KV memory: ``block_size`` token slots that belong together.

    The rest is the `hash` index's, which counts on blocks what the radix index counts on nodes:
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
