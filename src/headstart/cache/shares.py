"""Who holds how much of the pool: what a soft share for each tenant needs to know.

Every block that holds something, cached or in use, is owned by one tenant.  The tenant is a request's
`CacheRequest.tenant`; requests of one namespace share blocks, so the namespace has the tenant of whoever
came to it first, until nothing of it is left.  Owning decides nothing about hits: only who gives way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headstart.cache.blocks import law
from headstart.cache.keys import CacheRequest, Namespace


class Account:
    """One tenant's, with how many blocks it holds."""

    __slots__ = ("num_blocks", "tenant")

    def __init__(self, tenant: str | None) -> None:
        self.tenant = tenant
        self.num_blocks = 0


class Owner:
    """One namespace: whose it is, and how many blocks hold something of it."""

    __slots__ = ("account", "namespace", "num_blocks")

    def __init__(self, namespace: Namespace, account: Account) -> None:
        self.namespace = namespace
        self.account = account
        self.num_blocks = 0


class Ledger:
    """Counts each tenant's blocks; who holds more than ``limit`` is over its share.

    Tenants and namespaces that hold nothing are forgotten.
    """

    def __init__(self, num_blocks: int, share: float) -> None:
        self.limit = int(share * num_blocks)
        self.changed: dict[Account, None] = {}
        """Those whose count has changed since somebody has emptied this."""
        self._owners: list[Owner | None] = [None] * num_blocks
        self._namespaces: dict[Namespace, Owner] = {}
        self._accounts: dict[str | None, Account] = {}

    def is_over(self, account: Account) -> bool:
        """Whether the tenant holds more than its share."""
        return account.num_blocks > self.limit

    def account_at(self, block_id: int) -> Account:
        """Whose block it is.  It must be somebody's."""
        owner = self._owners[block_id]
        assert owner is not None, f"block {block_id} is nobody's"
        return owner.account

    def account_for(self, request: CacheRequest) -> Account:
        """Who pays for what the request takes; changes nothing."""
        owner = self._namespaces.get(request.namespace)
        if owner is not None:
            return owner.account
        return self._accounts.get(request.tenant) or Account(request.tenant)

    def charge(self, request: CacheRequest) -> Owner:
        """The request is about to take a block: it is counted before anybody is asked to give one up."""
        owner = self._namespaces.get(request.namespace)
        if owner is None:
            account = self._accounts.setdefault(request.tenant, Account(request.tenant))
            owner = self._namespaces[request.namespace] = Owner(request.namespace, account)
        self._count(owner, 1)
        return owner

    def give(self, block_id: int, owner: Owner) -> None:
        """The block that was charged; whoever had it before has it no more."""
        before, self._owners[block_id] = self._owners[block_id], owner
        if before is not None:
            self._count(before, -1)

    def take_back(self, block_ids: Iterable[int]) -> None:
        """They hold nothing any more."""
        for block_id in block_ids:
            owner, self._owners[block_id] = self._owners[block_id], None
            if owner is not None:
                self._count(owner, -1)

    def _count(self, owner: Owner, sign: int) -> None:
        account = owner.account
        owner.num_blocks += sign
        account.num_blocks += sign
        self.changed[account] = None
        if not owner.num_blocks:
            del self._namespaces[owner.namespace]
            if not account.num_blocks:
                del self._accounts[account.tenant]

    def state(self) -> list[tuple[int, ...]]:
        """The blocks of each tenant, whatever tenants are called."""
        blocks: dict[Account, list[int]] = {}
        for block_id, owner in enumerate(self._owners):
            if owner is not None:
                blocks.setdefault(owner.account, []).append(block_id)
        return sorted(map(tuple, blocks.values()))

    def check(self, free: Iterable[int]) -> None:
        """Prove that exactly the blocks that are not ``free`` of all content are owned, and the counts."""
        unowned = sorted(block_id for block_id, owner in enumerate(self._owners) if owner is None)
        law(unowned == sorted(free), f"I13: {len(unowned)} blocks are nobody's")
        owned = Counter(owner for owner in self._owners if owner is not None)
        law(set(owned) == set(self._namespaces.values()), f"I13: {len(owned)} namespaces own blocks")
        held: Counter[Account] = Counter()
        for owner, count in owned.items():
            law(count == owner.num_blocks, f"I13: a namespace owns {count} blocks, not {owner.num_blocks}")
            held[owner.account] += count
        law(set(held) == set(self._accounts.values()), f"I13: {len(held)} tenants hold blocks")
        for account, count in held.items():
            law(count == account.num_blocks, f"I13: a tenant holds {count} blocks, not {account.num_blocks}")
