"""The machine of the cache core with a soft share for each tenant: who gives way, block by block.

The oracle counts what each tenant holds from whole token lists and block tables.  A salt is a tenant here, so
that namespaces with adapters are the tenant's without a salt.
"""

from __future__ import annotations

from collections import Counter
from itertools import cycle

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from headstart.cache import CacheRequest, Namespace
from headstart.cache.shares import Ledger
from tests.machines.test_cache_machine import EXAMPLES, INDEXES, POLICIES, CacheMachine


class ShareMachine(CacheMachine):
    share: float
    pins_go_last = False  # a tenant's pins do not protect what it holds beyond its share

    def listed(self, request: CacheRequest) -> list[int]:
        request.tenant = request.namespace.salt
        return self.manager.free_block_ids(request)

    def owners(self) -> dict[int, str | None]:
        """Whose each block is that holds something."""
        owners = {block_id: entry.namespace.salt for block_id, entry in self.cached.items()}
        for name, live in self.live.items():
            owners |= dict.fromkeys(self.manager.block_table(name), live.request.namespace.salt)
            if live.replaced is not None:
                owners[live.replaced] = live.request.namespace.salt
        return owners

    def taken(self, request: CacheRequest, block_ids: list[int], free: list[int], shared: set[int]) -> None:
        if not shared:  # a hit's own blocks would have had turns
            assert block_ids == free[: len(block_ids)]
        asker, limit = request.namespace.salt, int(self.share * self.num_blocks)
        owners, left = self.owners(), [block_id for block_id in free if block_id not in shared]
        for block_id in block_ids:  # the request's table has them by now
            owners.pop(block_id, None)
            if block_id in self.cached:
                owners[block_id] = self.cached[block_id].namespace.salt
        held = Counter(owners.values())
        for block_id in block_ids:
            held[asker] += 1
            if block_id in self.cached:
                victim = self.cached[block_id].namespace.salt
                over = [one for one in left if one in self.cached and held[owners[one]] > limit]
                assert held[victim] > limit or not over, "somebody over the share was spared"
                if victim != asker and held[victim] <= limit:
                    assert held[asker] <= limit or not any(owners.get(one) == asker for one in left)
                held[victim] -= 1
            else:
                assert not any(one in self.cached for one in left[: left.index(block_id)])
            left.remove(block_id)
        self.evict(block_ids, free)

    @precondition(lambda self: not self.open)
    @rule(salts=st.lists(st.sampled_from([None, "a", "b"]), min_size=1, max_size=5), count=st.integers(1, 3))
    def serve(self, salts: list[str | None], count: int) -> None:
        """Prompts of their own kinds come and go, so that several tenants have idle blocks."""
        for salt in salts:
            self.counter += 1
            tokens = [self.counter + 9] * (count * self.size)
            request = CacheRequest(f"r{self.counter}", tokens, namespace=Namespace(salt=salt))
            self.let_in(request, request.num_tokens, blind=1, keep_copy=True, counts=True)
            if self.open:
                self.commit()
                self.release(request.request_id)

    @invariant()
    def the_ledger_agrees(self) -> None:
        if hasattr(self, "manager") and not self.open:
            ledger = self.manager._index._ledger
            held = {account.tenant: account.num_blocks for account in ledger._accounts.values()}
            assert held == Counter(self.owners().values())


def share_machine(index: str, policy: str, share: float) -> type[ShareMachine]:
    options = {"index": index, "policy": policy, "tenant_share": share}
    return type("Machine", (ShareMachine,), {"index": index, "options": options, "share": share})


@pytest.mark.parametrize(("policy", "share"), [*zip(POLICIES, cycle([0.2, 0.5, 0.3]), strict=False)])
@pytest.mark.parametrize("index", INDEXES)
def test_who_holds_more_than_a_share_gives_way_first(index: str, policy: str, share: float) -> None:
    run_state_machine_as_test(
        share_machine(index, policy, share),
        settings=settings(
            max_examples=EXAMPLES // (10 if policy == "lru" else 30),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


def test_an_order_that_forgets_shares_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "is_over", lambda ledger, account: False)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            share_machine("radix", "lru", 0.3),
            settings=settings(
                max_examples=300,
                stateful_step_count=40,
                deadline=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            ),
        )
