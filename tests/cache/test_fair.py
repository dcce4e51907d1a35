"""A soft share of the pool for each tenant (law I13), whatever the index and the policy."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, get_args

import pytest

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager, Namespace
from headstart.config import PolicyName, PrefixIndexName
from headstart.engine.decisions import Record, State
from headstart.engine.recording import RecordingManager
from tests.cache.checked import CheckedManager, admit, make_manager, run, serve
from tests.recorded import Tape, live_at_the_door


@pytest.fixture(params=get_args(PrefixIndexName))
def index(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=get_args(PolicyName))
def options(request: pytest.FixtureRequest, index: str) -> dict[str, Any]:
    return {"index": index, "policy": request.param, "ttl_seconds": 0.3}


def of(tenant: str, name: str, tokens: list[int], salt: str = "", priority: int = 0) -> CacheRequest:
    namespace = Namespace(salt=f"{tenant}{salt}")
    return CacheRequest(name, tokens, namespace=namespace, tenant=tenant, retention_priority=priority)


def text(number: int, num_blocks: int) -> list[int]:
    return [1000 * number + place for place in range(4 * num_blocks)]


def kept(manager: KVCacheManager, tenant: str, numbers: range, num_blocks: int) -> int:
    """How many blocks are left of these texts."""
    hits = (of(tenant, "probe", [*text(number, num_blocks), 0]) for number in numbers)
    return sum(manager.get_computed_blocks(hit).num_tokens // 4 for hit in hits)


def flood(manager: KVCacheManager, tenant: str, count: int, num_blocks: int, **more: Any) -> None:
    for number in range(count):
        manager.begin_step(float(number))
        serve(manager, of(tenant, f"f{number}", text(5000 + number, num_blocks), **more))


@pytest.mark.parametrize("had", [3, 20])
def test_a_flood_leaves_the_idle_their_share(options: dict[str, Any], had: int) -> None:
    manager = make_manager(20, tenant_share=0.5, **options)
    for number in range(had):
        serve(manager, of("victim", f"v{number}", text(number, 1)))
    flood(manager, "attacker", 30, 3)
    assert kept(manager, "victim", range(had), 1) == min(10, had)


def test_ten_thousand_prompts_leave_the_idle_their_share(index: str) -> None:
    manager = KVCacheManager(CacheConfig(100, 4, index=index, tenant_share=0.4, explain_misses=False))
    for number in range(60):
        serve(manager, of("victim", f"v{number}", text(number, 1)))
    flood(manager, "attacker", 10_000, 2)
    manager.check()
    assert kept(manager, "victim", range(60), 1) == 40


def test_many_salts_make_no_more_tenants(options: dict[str, Any]) -> None:
    manager = make_manager(20, tenant_share=0.5, **options)
    for number in range(10):
        serve(manager, of("victim", f"v{number}", text(number, 1)))
    for number in range(40):
        serve(manager, of("attacker", f"f{number}", text(number, 2), salt=str(number)))
    assert kept(manager, "victim", range(10), 1) == 10


@pytest.mark.parametrize("pins", [False, True])
def test_neither_pins_nor_priorities_help_beyond_the_share(options: dict[str, Any], pins: bool) -> None:
    manager = make_manager(20, tenant_share=0.5, max_pinned_share=1.0, **options)
    for number in range(10):
        serve(manager, of("victim", f"v{number}", text(number, 1)))
    for number in range(20):
        request = of("attacker", f"f{number}", text(5000 + number, 1), priority=100)
        serve(manager, request)
        assert not pins or manager.pin(request, 100.0) is not None
    assert kept(manager, "victim", range(10), 1) == 10
    assert kept(manager, "attacker", range(5000, 5020), 1) == 10
    for number in range(10, 20):  # who is within the share takes nothing from others by asking for more
        serve(manager, of("victim", f"v{number}", text(number, 1)))
    assert kept(manager, "attacker", range(5000, 5020), 1) == 10
    assert kept(manager, "victim", range(20), 1) == 10


def test_unused_room_is_anybodys(options: dict[str, Any]) -> None:
    manager = make_manager(20, tenant_share=0.1, **options)
    for number in range(20):
        serve(manager, of("only", f"o{number}", text(number, 1)))
    assert manager.num_evicted_blocks == 0
    assert kept(manager, "only", range(20), 1) == 20
    serve(manager, of("other", "x", text(99, 2)))  # takes it back, as far as it asks
    assert kept(manager, "only", range(20), 1) == 18


def test_a_prompt_as_large_as_the_pool_fits_whoever_sends_it(options: dict[str, Any]) -> None:
    manager = make_manager(20, tenant_share=0.5, **options)
    for number in range(10):
        serve(manager, of("victim", f"v{number}", text(number, 1)))
    assert run(manager, of("attacker", "large", text(7, 20))).num_tokens == 0
    assert kept(manager, "victim", range(10), 1) == 0


def test_what_runs_counts_too(options: dict[str, Any]) -> None:
    manager = make_manager(20, tenant_share=0.5, **options)
    for number in range(10):
        serve(manager, of("victim", f"v{number}", text(number, 1)))
    running = of("attacker", "long", text(7, 8))
    run(manager, running)
    flood(manager, "attacker", 10, 2)  # has the other two to itself
    assert kept(manager, "victim", range(10), 1) == 10
    manager.free(running)


# Off, and as good as off


def lived(config: CacheConfig, seed: int) -> list[Record]:
    tape = Tape()
    live_at_the_door(RecordingManager(config, tape), random.Random(seed), 150)
    return [record for record in tape.records if not isinstance(record, State)]


def plain(records: list[Record]) -> list[Record]:
    """Without pseudonyms, which differ in every recording."""
    return [replace_salts(record) for record in records]


def replace_salts(record: Record) -> Record:
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return type(record)(**fields | {name: None for name in ("salt", "tenant") if name in fields})


@pytest.mark.parametrize("seed", range(4))
def test_a_share_of_all_changes_nothing(options: dict[str, Any], seed: int) -> None:
    config = CacheConfig(10, 3, free_order="unhashed_first", evict_generated_first=seed % 2 == 0, **options)
    assert plain(lived(config, seed)) == plain(lived(replace(config, tenant_share=1.0), seed))


@pytest.mark.parametrize("seed", range(2))
def test_one_tenant_alone_notices_nothing(options: dict[str, Any], seed: int) -> None:
    config = CacheConfig(10, 3, free_order="unhashed_first", **options)
    whole, small = KVCacheManager(config), KVCacheManager(replace(config, tenant_share=0.01))
    for number in range(60):
        rng = random.Random(f"{seed} {number}")
        tokens = [rng.randrange(3) for _ in range(rng.randint(1, 20))]
        told = []
        for manager in (whole, small):
            request = CacheRequest(f"r{number}", tokens)
            told.append((admit(manager, request).num_tokens, manager.block_table(request.request_id)))
            manager.commit_step()
            manager.free(request)
        assert told[0] == told[1]
        assert whole.free_block_ids() == small.free_block_ids()


def test_tenants_that_hold_nothing_are_forgotten(options: dict[str, Any]) -> None:
    manager: CheckedManager = make_manager(6, tenant_share=0.5, **options)
    for number in range(50):
        serve(manager, of(f"tenant {number}", f"t{number}", text(number, 2)))
    ledger = manager._index._ledger  # type: ignore[attr-defined]
    assert len(ledger._accounts) <= 3 >= len(ledger._namespaces)
    assert len(manager._index._order._orders if hasattr(manager._index, "_order") else "") <= 4  # type: ignore[attr-defined]
    assert manager.reset_prefix_cache()
    assert not ledger._accounts
