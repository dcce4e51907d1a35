"""The order of eviction with a soft share for each tenant.

Each tenant has an order of its own, by the policy that there is.  As long as a tenant that holds more than
its share has anything idle, the next victim is one of such tenants'; else it is anybody's.  Among those who
come into question the victim is the one that would have gone without shares: heads of orders are compared by
what the policy says, ranks and pins included.  So pins and priorities decide what of a tenant goes, and not
whether it is the tenant's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count

from headstart.cache.blocks import LinkedQueue, law
from headstart.cache.eviction import Claim, EvictionPolicy, LazyHeap, Use, make_policy
from headstart.cache.keys import CacheRequest
from headstart.cache.shares import Account, Ledger
from headstart.cache.victims import Counters, Item, Key, LruOrder, ScoredOrder, Shape, VictimOrder
from headstart.config import CacheConfig


class _DatedLru(LruOrder[Item]):
    """Knows of each item when it fell idle, so that it can be compared with another tenant's."""

    def __init__(self, clock: Iterator[int], *, generated_first: bool) -> None:
        super().__init__(LinkedQueue(), generated_first=generated_first)
        self._clock = clock
        self._dates: dict[Item, int] = {}

    def append(self, item: Item) -> None:
        self._dates[item] = next(self._clock)
        super().append(item)

    def remove(self, item: Item) -> None:
        super().remove(item)
        del self._dates[item]

    def split(self, item: Item, upper: Item, *, idle: bool) -> None:
        super().split(item, upper, idle=idle)
        if idle:
            self._dates[upper] = self._dates[item]

    def key(self, item: Item) -> Key:
        rank = self._lowest if item.use is None else item.use.rank
        return *rank, self._dates[item]


class _PartScored(ScoredOrder[Item]):
    """One tenant's part: what the policy changes may be another tenant's."""

    def __init__(
        self,
        policy: EvictionPolicy,
        shape: Shape[Item],
        counters: Counters,
        renewed: Callable[[Use], None],
        *,
        generated_first: bool,
    ) -> None:
        super().__init__(LinkedQueue(), policy, shape, generated_first=generated_first, counters=counters)
        self._renewed = renewed

    def _renew(self, use: Use) -> None:
        self._renewed(use)

    def renew(self, use: Use) -> None:
        """The policy has changed the score or the rank of one of ours."""
        super()._renew(use)


class FairOrder(VictimOrder[Item]):
    """Takes turns among tenants by a `Ledger`, whose counts must be up to date when `first` is asked.

    ``policy`` None is `lru`.  O(log tenants) per event beside what the policy costs.
    """

    def __init__(
        self,
        base: LinkedQueue[Item],
        policy: EvictionPolicy | None,
        shape: Shape[Item],
        ledger: Ledger,
        *,
        generated_first: bool,
    ) -> None:
        super().__init__(base, generated_first=generated_first)
        self.uses_shape = policy is not None
        self._policy = policy
        self._shape = shape
        self._ledger = ledger
        self._counters = Counters()
        self._clock = count()
        self._orders: dict[Account, VictimOrder[Item]] = {}
        self._homes: dict[Item, Account] = {}  # of what is idle
        self._over: LazyHeap[Account] = LazyHeap()  # by the key of the first to go
        self._within: LazyHeap[Account] = LazyHeap()

    # -- whose order -----------------------------------------------------------------------------

    def _order(self, account: Account) -> VictimOrder[Item]:
        """The account's, which may change now."""
        self._ledger.changed[account] = None
        order = self._orders.get(account)
        if order is None:
            order = self._orders[account] = self._make()
        return order

    def _order_of(self, item: Item) -> VictimOrder[Item]:
        account = self._homes.get(item)
        return self._order(self._ledger.account_at(item.first_block_id) if account is None else account)

    def _make(self) -> VictimOrder[Item]:
        if self._policy is None:
            return _DatedLru(self._clock, generated_first=self._generated_first)
        return _PartScored(
            self._policy, self._shape, self._counters, self._renew, generated_first=self._generated_first
        )

    def _renew(self, use: Use) -> None:
        account = self._homes.get(use.item)
        if account is not None:
            order = self._order(account)
            assert isinstance(order, _PartScored)
            order.renew(use)

    # -- events ----------------------------------------------------------------------------------

    def is_asked(self, request: CacheRequest) -> bool:
        """As the policy has it."""
        return self.uses_shape or super().is_asked(request)

    def begin_step(self, now: float) -> None:
        """What that changes is up to the policy."""
        if self._policy is not None:
            for use in self._policy.advance(now):
                self._renew(use)

    def append(self, item: Item) -> None:
        """In the order of whoever owns it."""
        account = self._homes[item] = self._ledger.account_at(item.first_block_id)
        self._order(account).append(item)

    def remove(self, item: Item) -> None:
        """Wherever it stands."""
        account = self._homes.get(item)
        if account is None:
            self.base.remove(item)
            return
        self._order(account).remove(item)
        del self._homes[item]

    def claim(self, item: Item, claim: Claim, *, is_use: bool = True) -> None:
        """See `VictimOrder`, as for the following."""
        self._order_of(item).claim(item, claim, is_use=is_use)

    def split(self, item: Item, upper: Item, *, idle: bool) -> None:
        """Both are the owner's."""
        self._order_of(item).split(item, upper, idle=idle)
        if idle:
            self._homes[upper] = self._homes[item]

    def _rerank(self, item: Item, change: Callable[[], None]) -> None:
        self._order_of(item)._rerank(item, change)  # noqa: SLF001  # an order like this one

    def are_alike(self, item: Item, upper: Item) -> bool:
        """As the policy has it."""
        return self._order_of(item).are_alike(item, upper)

    def joined(self, item: Item, upper: Item) -> None:
        """As the policy has it."""
        self._order_of(item).joined(item, upper)

    def review(self, item: Item) -> None:
        """Of what is idle."""
        account = self._homes.get(item)
        if account is not None:
            self._order(account).review(item)

    def evicted(self, item: Item, count: int = 1) -> None:
        """Pins are counted here, for all tenants."""
        super().evicted(item, count)
        if self._policy is not None and item.use is not None:
            self._policy.evicted(item.use, count)

    # -- whose turn ------------------------------------------------------------------------------

    def first(self) -> Item | None:
        """What holds nothing; then what those have who are over their share; then anybody's."""
        if len(self.base):
            return self.base.first()
        self._settle()
        account = self._over.first() or self._within.first()
        return None if account is None else self._orders[account].first()

    def _settle(self) -> None:
        """Put those accounts where they belong whose count or order has changed."""
        changed = self._ledger.changed
        for account in changed:
            self._over.discard(account)
            self._within.discard(account)
            order = self._orders.get(account)
            first = None if order is None else order.first()
            if order is None or first is None:
                self._orders.pop(account, None)
            else:
                heap = self._over if self._ledger.is_over(account) else self._within
                heap.push(account, order.key(first))
        changed.clear()

    def each_block(self, request: CacheRequest | None = None, ahead: int = 0) -> Iterator[Item]:
        """As `first` would say, again and again, while ``request`` takes what goes."""
        ledger, limit = self._ledger, self._ledger.limit
        asker = None if request is None else ledger.account_for(request)
        held = {account: account.num_blocks for account in self._orders}
        if asker is not None:
            held[asker] = asker.num_blocks + ahead
        for item in self.base:
            if asker is not None:
                held[asker] += 1
            yield item
        streams = {account: self._orders[account].ranked() for account in self._orders}
        heads = {account: first for account in streams if (first := next(streams[account], None)) is not None}
        left: dict[Item, int] = {}
        while heads:
            if asker is not None:
                held[asker] += 1
            account = min(heads, key=lambda one: (held[one] <= limit, heads[one][0]))
            item = heads[account][1]
            yield item
            held[account] -= 1
            left[item] = left.get(item, item.num_blocks) - 1
            if not left[item]:
                following = next(streams[account], None)
                if following is None:
                    del heads[account]
                else:
                    heads[account] = following

    def key(self, item: Item) -> Key:
        """By its owner's order."""
        return self._order_of(item).key(item)

    def ranked(self) -> Iterator[tuple[Key, Item]]:
        """All of them, by the turns of their owners."""
        num_base = len(self.base)
        return ((self.key(item), item) for item in list(self)[num_base:])

    def __len__(self) -> int:
        return len(self.base) + len(self._homes)

    def __iter__(self) -> Iterator[Item]:
        """Each where its last block stands."""
        gone: dict[Item, int] = {}
        for item in self.each_block():
            gone[item] = gone.get(item, 0) + 1
            if gone[item] == item.num_blocks:
                yield item

    # -- the state and the laws ------------------------------------------------------------------

    def state(self) -> Iterator[object]:
        """The counters, and what the policy has; who owns what."""
        if self._policy is not None:
            counters = self._counters
            yield counters.created, counters.places, float(self._policy.now), self._policy.state()
        yield self._ledger.state()

    def check(self, items: Iterable[Item]) -> None:
        """Each tenant's order keeps its own laws, and has what is the tenant's."""
        items = list(items)
        super().check(items)
        for item, account in self._homes.items():
            law(self._ledger.account_at(item.first_block_id) is account, f"I13: {item!r} is another tenant's")
        for account, order in self._orders.items():
            own = [item for item in items if self._homes.get(item) is account]
            law(len(own) == len(order), f"I13: {len(own)} idle items of a tenant, {len(order)} in its order")
            order.check_order(own)
        self._settle()
        for account, order in self._orders.items():
            heap = self._over if self._ledger.is_over(account) else self._within
            first = order.first()
            law(
                first is not None and account in heap and heap.key(account) == order.key(first),
                "I13: a tenant has an outdated place",
            )


def make_order(
    config: CacheConfig, base: LinkedQueue[Item], shape: Shape[Item], ledger: Ledger | None = None
) -> VictimOrder[Item]:
    """The order that the configuration asks for; ``ledger`` is there if tenants have shares."""
    policy, generated_first = make_policy(config), config.evict_generated_first
    if ledger is not None:
        return FairOrder(base, policy, shape, ledger, generated_first=generated_first)
    if policy is None:
        return LruOrder(base, generated_first=generated_first)
    return ScoredOrder(base, policy, shape, generated_first=generated_first)
