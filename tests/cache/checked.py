"""A manager whose laws are proved after every call, and what most tests of the core begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headstart.cache import (
    Allocation,
    CacheConfig,
    CacheRequest,
    CacheStats,
    KVCacheManager,
    Namespace,
    Pin,
    PrefixHit,
)
from headstart.cache.keys import SHARED


class CheckedManager(KVCacheManager):
    """`KVCacheManager` that calls ``check()`` after each call, also after one that raised."""

    def get_computed_blocks(self, request: CacheRequest) -> PrefixHit:
        try:
            return super().get_computed_blocks(request)
        finally:
            self.check()

    def allocate_slots(
        self, request: CacheRequest, num_new_tokens: int, hit: PrefixHit | None = None
    ) -> Allocation | None:
        try:
            return super().allocate_slots(request, num_new_tokens, hit)
        finally:
            self.check()

    def fork(self, request: CacheRequest, child: CacheRequest) -> None:
        try:
            super().fork(request, child)
        finally:
            self.check()

    def commit_step(self) -> None:
        try:
            super().commit_step()
        finally:
            self.check()

    def rollback_step(self) -> tuple[str, ...]:
        try:
            return super().rollback_step()
        finally:
            self.check()

    def free(self, request: CacheRequest) -> tuple[str, ...]:
        try:
            return super().free(request)
        finally:
            self.check()

    def pin(self, request: CacheRequest, seconds: float) -> Pin | None:
        try:
            return super().pin(request, seconds)
        finally:
            self.check()

    def unpin(self, request_id: str) -> bool:
        try:
            return super().unpin(request_id)
        finally:
            self.check()

    def begin_step(self, now: float) -> None:
        try:
            super().begin_step(now)
        finally:
            self.check()

    def reset_prefix_cache(self) -> bool:
        try:
            return super().reset_prefix_cache()
        finally:
            self.check()


FLAVOURS: dict[str, dict[str, Any]] = {
    "radix": {"index": "radix"},
    "hash": {"index": "hash"},
    "hash-unhashed-first": {"index": "hash", "free_order": "unhashed_first"},
}
Make = Callable[..., CheckedManager]


def make_manager(num_blocks: int, block_size: int = 4, **options: Any) -> CheckedManager:
    """A checked manager; ``options`` are those of `CacheConfig`."""
    return CheckedManager(CacheConfig(num_blocks=num_blocks, block_size=block_size, **options))


def ask(name: str, tokens: Iterable[int], namespace: Namespace = SHARED) -> CacheRequest:
    """A request for ``tokens``."""
    return CacheRequest(name, tokens, namespace=namespace)


def cached(manager: KVCacheManager, tokens: Iterable[int], namespace: Namespace = SHARED) -> int:
    """How many of the tokens a request for them would find."""
    return manager.get_computed_blocks(ask("probe", tokens, namespace)).num_tokens


def reach(manager: KVCacheManager, shared: int, prompt: int) -> int:
    """The hit of a ``prompt`` whose first ``shared`` tokens a freed request has computed."""
    found = min(shared, prompt - 1)
    return found if manager.config.index == "radix" else found // 4 * 4


def admit(manager: KVCacheManager, request: CacheRequest, num_new_tokens: int | None = None) -> PrefixHit:
    """Look up, then allocate what is left of the prompt (or ``num_new_tokens``).  There must be room."""
    hit = manager.get_computed_blocks(request)
    count = request.num_tokens - hit.num_tokens if num_new_tokens is None else num_new_tokens
    assert manager.allocate_slots(request, count, hit) is not None
    return hit


def run(manager: KVCacheManager, request: CacheRequest) -> PrefixHit:
    """Admit the request in a step of its own and commit it; it keeps its blocks."""
    hit = admit(manager, request)
    manager.commit_step()
    return hit


def serve(manager: KVCacheManager, request: CacheRequest) -> PrefixHit:
    """Admit, commit and free."""
    hit = run(manager, request)
    manager.free(request)
    return hit


def decode(manager: KVCacheManager, request: CacheRequest, tokens: Iterable[int]) -> None:
    """Sample each token and compute it in a step of its own."""
    for token in tokens:
        request.append(token)
        assert manager.allocate_slots(request, 1) is not None
        manager.commit_step()


State = tuple[list[int], float, CacheStats, list[list[int]]]


def state(manager: KVCacheManager, *live: CacheRequest) -> State:
    """All that can be seen of a manager and of its ``live`` requests."""
    tables = [manager.block_table(request.request_id) for request in live]
    return manager.free_block_ids(), manager.usage, manager.stats, tables
