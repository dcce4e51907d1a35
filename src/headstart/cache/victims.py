"""Who goes next: the orders of idle blocks and nodes, and the pins that hold some of them back.

An index keeps what nothing holds in an order: blocks in the `hash` index, nodes in the radix index.  Of each
item it says what depends on it (`Shape`), because nothing may go before what continues it (law I7).

* `LruOrder` is the free queue itself, one queue for each rank: items enter it deepest first, and whoever uses
  an item ranks all that it builds on at least as high, so no item stands before one that continues it.
* `ScoredOrder` keeps a heap of those that nothing continues, by the score of an `EvictionPolicy`; when the
  last continuation of an item has gone, it enters the heap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import repeat
from typing import Any, Generic, Protocol, TypeVar

from sortedcontainers import SortedDict

from headstart.cache.blocks import Evictable, LinkedQueue, law
from headstart.cache.eviction import Claim, EvictionPolicy, LazyHeap, Rank, Use
from headstart.cache.keys import CacheRequest
from headstart.errors import CacheError

Item = TypeVar("Item", bound=Evictable)
Key = tuple[Any, ...]
"""What sorts lower goes first; no two idle items of an index have the same."""
Place = TypeVar("Place")


class Shape(Protocol[Item]):
    """How the items of an index depend on each other."""

    def num_below(self, item: Item) -> int:
        """How many findable items continue this one and would be lost with it."""
        ...

    def above(self, item: Item) -> Item | None:
        """The item that this one continues; None if it would not notice that this one has gone."""
        ...


class VictimOrder(ABC, Generic[Item]):
    """What both orders have: ranks, pins, and ``base``, the queue of what goes first of all.

    Items without a `Use` stand in the base, the others where their rank and score put them.
    """

    uses_shape = False
    """Whether it asks what continues an item."""

    def __init__(self, base: LinkedQueue[Item], *, generated_first: bool) -> None:
        self.base = base
        self.num_pinned_blocks = 0
        self._generated_first = generated_first

    def is_asked(self, request: CacheRequest) -> bool:
        """Whether `claim` must be called for what the request uses."""
        return self._generated_first or request.retention_priority > 0

    def claim_of(self, request: CacheRequest, start: int, stop: int, block_size: int) -> Claim:
        """What the request wants of its blocks ``start`` to ``stop`` (exclusive)."""
        prompt = not self._generated_first or start * block_size < request.num_prompt_tokens
        return Claim(stop, request.retention_priority, prompt)

    def begin_step(self, now: float) -> None:
        """Time has come to ``now``."""

    @abstractmethod
    def append(self, item: Item) -> None:
        """It fell idle."""

    @abstractmethod
    def remove(self, item: Item) -> None:
        """It is idle no more."""

    def append_all(self, items: Iterable[Item]) -> None:
        """They fell idle, in this order."""
        for item in items:
            self.append(item)

    def remove_all(self, items: Iterable[Item]) -> None:
        """They are idle no more."""
        for item in items:
            self.remove(item)

    @abstractmethod
    def first(self) -> Item | None:
        """The next victim, left where it is; None if there is none."""

    @abstractmethod
    def claim(self, item: Item, claim: Claim, *, is_use: bool = True) -> None:
        """A request uses it and wants it kept; a fork, which is no use of its own, wants it only."""

    @abstractmethod
    def split(self, item: Item, upper: Item, *, idle: bool) -> None:
        """``upper`` is what was cut off ``item`` above it."""

    @abstractmethod
    def _rerank(self, item: Item, change: Callable[[], None]) -> None:
        """Make the change, with the item put where it stands afterwards if it is idle."""

    @abstractmethod
    def are_alike(self, item: Item, upper: Item) -> bool:
        """Whether nothing tells ``item`` from ``upper``, which it continues, so that they can be joined."""

    def joined(self, item: Item, upper: Item) -> None:
        """``item`` has taken in ``upper``."""

    def review(self, item: Item) -> None:
        """What continues it may have come or gone."""

    def evicted(self, item: Item, count: int = 1) -> None:
        """The last ``count`` blocks of its content were given up."""
        if item.use is not None and item.use.pins:
            self.num_pinned_blocks -= count

    def pin(self, item: Item, sign: int) -> None:
        """One pin more (``sign`` 1) or fewer (-1) is on it."""
        use = item.use
        before = 0 if use is None else use.pins

        def change() -> None:
            if item.use is None:
                item.use = Use(0)
            item.use.pins += sign

        self._rerank(item, change)
        self.num_pinned_blocks += ((before + sign > 0) - (before > 0)) * item.num_blocks

    def drain(self) -> None:
        """Forget what is known of the items, all of which are idle: the base gets them, in the same order."""
        items = list(self)[len(self.base) :]
        for item in items:
            self.remove(item)
            item.use = None
            self.base.append(item)
        self.num_pinned_blocks = 0

    def popleft(self) -> Item:
        """Take the next victim.  Raises ``CacheError`` when there is none."""
        item = self.first()
        if item is None:
            raise CacheError("no free block is left: whoever takes must ask for room first")
        self.remove(item)
        return item

    @abstractmethod
    def key(self, item: Item) -> Key:
        """Where an idle item stands, compared with others that could go as well."""

    @abstractmethod
    def ranked(self) -> Iterator[tuple[Key, Item]]:
        """What is behind the base, in order, with keys."""

    @abstractmethod
    def __len__(self) -> int:
        """How many are idle."""

    @abstractmethod
    def __iter__(self) -> Iterator[Item]:
        """In the order in which they go if nothing else happens."""

    def each_block(self, request: CacheRequest | None = None, ahead: int = 0) -> Iterator[Item]:  # noqa: ARG002
        """Whose block goes next, one block after the other, if ``request`` takes them.

        It has taken ``ahead`` blocks before them, none of which anybody had to give up.
        """
        for item in self:
            yield from repeat(item, item.num_blocks)

    def state(self) -> Iterator[object]:
        """What decides beside the items' uses and their order."""
        return iter(())

    def check(self, items: Iterable[Item]) -> None:
        """Prove the order's own laws, given all items that are cached."""
        items = list(items)
        pinned = {id(item.use): item.num_blocks for item in items if item.use is not None and item.use.pins}
        law(
            sum(pinned.values()) == self.num_pinned_blocks,
            f"I1: {sum(pinned.values())} blocks are pinned, {self.num_pinned_blocks} counted",
        )
        self.check_order(items)

    def check_order(self, items: Iterable[Item]) -> None:
        """The same without what concerns pins."""


class LruOrder(VictimOrder[Item]):
    """Longest idle first; O(1) per event (for ranks beside the lowest, O(log ranks))."""

    def __init__(self, base: LinkedQueue[Item], *, generated_first: bool) -> None:
        super().__init__(base, generated_first=generated_first)
        self._lowest: Rank = (False, True, 0, not generated_first)
        self._ranked: SortedDict = SortedDict()  # rank → queue, none of them empty
        self._has_uses = False  # whether any item may have one: most servers never ask for ranks

    def append_all(self, items: Iterable[Item]) -> None:
        """At the tails of their ranks."""
        if self._has_uses:
            super().append_all(items)
        else:
            self.base.append_all(items)

    def remove_all(self, items: Iterable[Item]) -> None:
        """Wherever they stand."""
        if self._has_uses:
            super().remove_all(items)
        else:
            self.base.remove_all(items)

    def _queue_of(self, use: Use | None) -> LinkedQueue[Item]:
        rank = self._lowest if use is None else use.rank
        if rank == self._lowest:
            return self.base
        queue: LinkedQueue[Item] | None = self._ranked.get(rank)
        if queue is None:
            queue = self._ranked[rank] = LinkedQueue()
        return queue

    def append(self, item: Item) -> None:
        """At the tail of its rank."""
        (self.base if item.use is None else self._queue_of(item.use)).append(item)

    def remove(self, item: Item) -> None:
        """Wherever it stands."""
        if item.use is None:
            self.base.remove(item)
            return
        queue = self._queue_of(item.use)
        queue.remove(item)
        if queue is not self.base and not len(queue):
            del self._ranked[item.use.rank]

    def first(self) -> Item | None:
        """The head of the lowest rank."""
        if len(self.base) or not self._ranked:
            return self.base.first()
        queue: LinkedQueue[Item] = self._ranked.peekitem(0)[1]
        return queue.first()

    def claim(self, item: Item, claim: Claim, *, is_use: bool = True) -> None:  # noqa: ARG002  # see append
        """Its rank is the highest that was wanted of it."""

        def change() -> None:
            if item.use is None:
                item.use = Use(claim.depth, prompt=not self._generated_first)  # else a claim must say so
                self._has_uses = True
            item.use.claim(claim)

        use = item.use
        if use is None or use.would_change(claim):
            self._rerank(item, change)

    def pin(self, item: Item, sign: int) -> None:
        """See `VictimOrder`."""
        self._has_uses = True
        super().pin(item, sign)

    def _rerank(self, item: Item, change: Callable[[], None]) -> None:
        idle = item.next is not None
        if idle:
            self.remove(item)
        change()
        if idle:
            self.append(item)

    def split(self, item: Item, upper: Item, *, idle: bool) -> None:
        """Directly behind ``item``."""
        if item.use is not None:
            upper.use = item.use.upper_part(item.num_blocks)
        if idle:
            self._queue_of(item.use).insert_after(item, upper)

    def are_alike(self, item: Item, upper: Item) -> bool:
        """The same rank, and the same pins."""
        if item.use is None and upper.use is None:
            return True
        ranks = [(self._lowest, 0) if use is None else (use.rank, use.pins) for use in (item.use, upper.use)]
        return ranks[0] == ranks[1]

    def key(self, item: Item) -> Key:
        """Its rank: within one they queue."""
        return self._lowest if item.use is None else item.use.rank

    def ranked(self) -> Iterator[tuple[Key, Item]]:
        """All of them: what others have in their base is of the lowest rank here."""
        return ((self.key(item), item) for item in self)

    def __len__(self) -> int:
        return len(self.base) + sum(map(len, self._ranked.values()))

    def __iter__(self) -> Iterator[Item]:
        yield from self.base
        for queue in self._ranked.values():
            yield from queue


@dataclass(slots=True)
class Counters:
    """How many uses were created, and places given: what tells items of equal scores apart."""

    created: int = 0
    places: int = 0


class ScoredOrder(VictimOrder[Item]):
    """Lowest rank and score first; O(log n) per event.  Orders that share a policy share ``counters``."""

    uses_shape = True

    def __init__(
        self,
        base: LinkedQueue[Item],
        policy: EvictionPolicy,
        shape: Shape[Item],
        *,
        generated_first: bool,
        counters: Counters | None = None,
    ) -> None:
        super().__init__(base, generated_first=generated_first)
        self._policy = policy
        self._shape = shape
        self._ready: LazyHeap[Use] = LazyHeap()  # idle, and nothing continues it
        self._num_idle = 0
        self._counters = counters or Counters()

    def is_asked(self, request: CacheRequest) -> bool:  # noqa: ARG002  # whoever asks
        """Every use counts."""
        return True

    def begin_step(self, now: float) -> None:
        """What that changes is up to the policy."""
        for use in self._policy.advance(now):
            self._renew(use)

    def append(self, item: Item) -> None:
        """With the score that its use has earned."""
        use = item.use
        if use is None:
            self.base.append(item)
            return
        use.item, use.idle = item, True
        self._num_idle += 1
        self._give_place(use)
        for demoted in self._policy.idle(use):
            self._give_place(demoted)
            self._renew(demoted)
        self.review(item)

    def remove(self, item: Item) -> None:
        """Wherever it stands."""
        use = item.use
        if use is None:
            self.base.remove(item)
            return
        if not use.idle or use.item is not item:
            raise CacheError(f"{item!r} is not idle")
        self._policy.busy(use)
        self._ready.discard(use)
        use.idle = False
        self._num_idle -= 1

    def first(self) -> Item | None:
        """The lowest of those that nothing continues."""
        if len(self.base):
            return self.base.first()
        use = self._ready.first()
        return None if use is None else use.item

    def claim(self, item: Item, claim: Claim, *, is_use: bool = True) -> None:
        """Told to the policy, unless a fork wants it."""
        if not is_use and item.use is not None and not item.use.would_change(claim):
            return  # an idle copy keeps its place: a fork holds the other one

        def change() -> None:
            if item.use is None:
                item.use = Use(claim.depth, created=self._counters.created, prompt=False)
                self._counters.created += 1
            item.use.claim(claim)
            if is_use:
                item.use.count += 1
                self._policy.used(item.use)

        self._rerank(item, change)

    def _rerank(self, item: Item, change: Callable[[], None]) -> None:
        idle = item.use is not None and item.use.idle and item.use.item is item
        if idle:
            self.remove(item)
        change()
        if idle:
            self.append(item)

    def split(self, item: Item, upper: Item, *, idle: bool) -> None:
        """``upper`` has something below it: it is not ready."""
        use = item.use
        if use is None:
            raise CacheError(f"{item!r} was never claimed")
        upper.use = use.upper_part(item.num_blocks)
        if idle:
            upper.use.item, upper.use.idle = upper, True
            self._num_idle += 1
            self._give_place(upper.use)
            self._policy.split(use, upper.use)

    def are_alike(self, item: Item, upper: Item) -> bool:
        """Held, and with the same history: whoever used ``upper`` used ``item`` too."""
        a, b = item.use, upper.use
        if a is None or b is None or a.idle or b.idle:
            return False
        return (a.rank, a.pins, a.count) == (b.rank, b.pins, b.count)

    def joined(self, item: Item, upper: Item) -> None:
        """As old as its older part."""
        assert item.use is not None
        assert upper.use is not None
        item.use.created = upper.use.created

    def review(self, item: Item) -> None:
        """Ready, or not."""
        use = item.use
        if use is None or not use.idle or use.item is not item:
            return
        if self._shape.num_below(item) > 0:
            self._ready.discard(use)
        elif use not in self._ready:
            self._ready.push(use, use.key)

    def evicted(self, item: Item, count: int = 1) -> None:
        """Told to the policy."""
        super().evicted(item, count)
        if item.use is not None:
            self._policy.evicted(item.use, count)

    def _give_place(self, use: Use) -> None:
        use.place = self._counters.places
        self._counters.places += 1

    def _renew(self, use: Use) -> None:
        if use in self._ready:
            self._ready.push(use, use.key)

    def __len__(self) -> int:
        return len(self.base) + self._num_idle

    def __iter__(self) -> Iterator[Item]:
        yield from self.base
        for _, item in self.ranked():
            yield item

    def key(self, item: Item) -> Key:
        """Its use's."""
        assert item.use is not None
        return item.use.key

    def ranked(self) -> Iterator[tuple[Key, Item]]:
        """What falls to the ground when its last continuation goes joins the others."""
        heap = self._ready.entries()
        below: dict[Use, int] = {}
        while heap:
            key, first = heappop(heap)
            item: Item = first.item
            yield key, item
            above = self._shape.above(item)
            use = None if above is None else above.use
            if above is None or use is None or not use.idle or use.item is not above:
                continue
            below[use] = below.get(use, self._shape.num_below(above)) - 1
            if below[use] == 0:
                heappush(heap, (use.key, use))

    def state(self) -> Iterator[object]:
        """The counters, and what the policy has."""
        yield self._counters.created, self._counters.places, float(self._policy.now), self._policy.state()

    def check_order(self, items: Iterable[Item]) -> None:
        """The ready ones are exactly the idle ones that nothing continues, each with its own key."""
        idle = [item for item in items if item.use is not None and item.use.idle and item.use.item is item]
        law(len(idle) == self._num_idle, f"I1: {len(idle)} are idle, {self._num_idle} counted")
        ready = {item.use: item for item in idle if self._shape.num_below(item) == 0 and item.use is not None}
        law(len(ready) == len(self._ready), f"I7: {len(ready)} could go, {len(self._ready)} are ready to")
        for use, item in ready.items():
            law(use in self._ready and self._ready.key(use) == use.key, f"I7: {item!r} has an outdated place")


class Pins(Generic[Place, Item]):
    """Pinned prefixes: a name, and the place of the deepest item that is left of each.

    ``path`` lists the items from a place up to the beginning, the deepest first.
    """

    def __init__(self, order: VictimOrder[Item], path: Callable[[Place], Iterable[Item]]) -> None:
        self._order = order
        self._path = path
        self._places: dict[str, Place | None] = {}

    def pin(self, name: str, place: Place | None) -> None:
        """Hold back what is at ``place`` and above it; what the name held before no more."""
        if place is not None:
            self._change(place, 1)
        self.unpin(name)
        self._places[name] = place

    def unpin(self, name: str) -> None:
        """Let it go, if it was pinned."""
        place = self._places.pop(name, None)
        if place is not None:
            self._change(place, -1)

    def _change(self, place: Place, sign: int) -> None:
        for item in list(self._path(place)):
            self._order.pin(item, sign)

    def moved(self, place: Place, above: Place | None) -> None:
        """Nothing is left at ``place``: whoever pinned up to there does so up to ``above``."""
        for name, pinned in self._places.items():
            if pinned is not None and pinned == place:
                self._places[name] = above

    def num_blocks(self, name: str) -> int:
        """How many blocks are left of it."""
        place = self._places[name]
        return 0 if place is None else sum(item.num_blocks for item in self._path(place))

    def state(self, number: Callable[[Place], object]) -> list[object]:
        """Who pins up to where, ``number`` being what tells places apart."""
        return [(name, None if place is None else number(place)) for name, place in self._places.items()]
