"""Events of the cache: what they say, in which order, and that they rebuild what can be found (law I8).

That they do so whatever happens is for tests/machines/test_cache_machine.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headstart.cache import Adapter, CacheConfig, CacheRequest, KVCacheManager, Namespace
from headstart.cache.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventReplica,
    KVEvent,
    ReplicaBlock,
    _untagged,
)
from headstart.cache.hashing import ALGORITHMS, block_hash_chain
from tests.cache.checked import admit, ask, decode, run, serve

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "vllm_event_keys.json").read_text())
A = tuple(range(100, 112))  # three full blocks
CHAIN = tuple(block_hash_chain(A, block_size=4))
by_index = pytest.mark.parametrize("index", ["radix", "hash"])


def make(index: str, num_blocks: int = 8, **options: Any) -> KVCacheManager:
    return KVCacheManager(CacheConfig(num_blocks, 4, index=index, enable_kv_cache_events=True, **options))  # type: ignore[arg-type]


def stored(events: list[KVEvent]) -> list[tuple[tuple[bytes, ...], bytes | None]]:
    """Hashes and parent of each event; all must be of the one kind."""
    found = []
    for event in events:
        assert isinstance(event, BlockStored)
        assert len(event.token_ids) == event.block_size * len(event.block_hashes)
        assert event.extra_keys is not None
        assert len(event.extra_keys) == len(event.block_hashes)
        found.append((event.block_hashes, event.parent_block_hash))
    return found  # type: ignore[return-value]  # digests, here


def removed(events: list[KVEvent]) -> list[bytes]:
    """The hashes of events that are all removals, in order."""
    return [
        block_hash for event in events if isinstance(event, BlockRemoved) for block_hash in event.block_hashes
    ]  # type: ignore[misc]


@by_index
def test_a_prompt_is_one_event_with_all_that_is_needed_to_hash_it_again(index: str) -> None:
    manager = make(index, kv_event_medium="CPU")
    run(manager, ask("r", [*A, 1]))
    assert manager.take_events() == [
        BlockStored(
            block_hashes=CHAIN,
            parent_block_hash=None,
            token_ids=A,
            block_size=4,
            lora_name=None,
            extra_keys=(None, None, None),
            medium="CPU",
            group_idx=0,
            epoch=0,
            sequence=1,
        )
    ]


@by_index
def test_each_call_is_an_event_that_hangs_on_the_last_hash_before_it(index: str) -> None:  # item 61
    manager = make(index)
    request = ask("r", A)
    admit(manager, request, 5)
    manager.commit_step()
    assert manager.allocate_slots(request, 7) is not None
    manager.commit_step()
    first, second = stored(manager.take_events())
    assert first == (CHAIN[:1], None)
    assert second == (CHAIN[1:], CHAIN[0])


@by_index
def test_decoded_blocks_are_told_when_they_are_full(index: str) -> None:
    manager = make(index)
    request = ask("r", A[:6])
    run(manager, request)
    assert stored(manager.take_events()) == [(CHAIN[:1], None)]
    decode(manager, request, A[6:7])
    assert manager.take_events() == []
    decode(manager, request, A[7:8])
    assert stored(manager.take_events()) == [(CHAIN[1:2], CHAIN[0])]


@by_index
def test_what_is_removed_comes_before_what_takes_its_place(index: str) -> None:  # item 62
    manager = make(index, num_blocks=3)
    serve(manager, ask("r", A))
    manager.take_events()
    stranger = tuple(range(500, 512))
    run(manager, ask("s", stranger))
    *gone, last = manager.take_events()
    assert removed(gone) == [*reversed(CHAIN)]
    assert stored([last]) == [(tuple(block_hash_chain(stranger, block_size=4)), None)]


@by_index
def test_what_a_step_evicted_stays_told_when_it_is_rolled_back(index: str) -> None:
    manager = make(index, num_blocks=3)
    serve(manager, ask("r", A))
    manager.take_events()
    admit(manager, ask("s", range(500, 505)))
    manager.rollback_step()
    assert removed(manager.take_events()) == [*reversed(CHAIN)][:2]


@by_index
def test_a_hit_emits_nothing_and_hashes_nothing(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # item 63
    hashed: list[bytes] = []
    whole = ALGORITHMS["sha256_cbor"]
    counting = replace(whole, hash=lambda data: hashed.append(data) or whole.hash(data))
    with monkeypatch.context() as patch:
        patch.setitem(ALGORITHMS, "sha256_cbor", counting)
        manager = make(index)
    serve(manager, ask("r", [*A, 1]))
    manager.take_events()
    hashed.clear()
    run(manager, ask("s", [*A, 2, 3, 4, 5]))
    (event,) = manager.take_events()
    assert stored([event]) == [(tuple(block_hash_chain([*A, 2, 3, 4, 5], block_size=4))[3:], CHAIN[2])]
    assert len(hashed) == {"radix": 1, "hash": 4}[index]  # the hash index's own


@by_index
def test_a_branch_hangs_on_the_shared_block_and_nothing_is_told_of_the_split(index: str) -> None:  # item 68
    manager = make(index)
    serve(manager, ask("r", A[:8]))
    serve(manager, ask("s", [*A[:4], 1, 2, 3, 4]))
    branch = tuple(block_hash_chain([*A[:4], 1, 2, 3, 4], block_size=4))
    assert stored(manager.take_events()) == [(CHAIN[:2], None), (branch[1:], CHAIN[0])]
    serve(manager, ask("stranger", range(32)))
    gone = removed(manager.take_events())
    assert sorted(gone[:2]) == sorted([CHAIN[1], branch[1]])
    assert gone[2:] == [CHAIN[0]]


@by_index
def test_a_reset_clears_all(index: str) -> None:
    manager = make(index)
    serve(manager, ask("r", A))
    manager.take_events()
    assert manager.reset_prefix_cache()
    assert manager.take_events() == [AllBlocksCleared(0, 2)]
    serve(manager, ask("r", A))
    assert stored(manager.take_events()) == [(CHAIN, None)]


@by_index
def test_what_was_never_written_is_never_told(index: str) -> None:
    manager = make(index)
    admit(manager, ask("r", A))
    assert manager.take_events() == []
    manager.rollback_step()
    aborted = ask("s", A)
    admit(manager, aborted)
    manager.free(aborted)
    manager.commit_step()
    assert manager.take_events() == []


def test_a_second_copy_is_neither_stored_again_nor_removed_before_the_last() -> None:  # item 66
    manager = make("hash", num_blocks=6)
    twins = [CacheRequest(name, A[:8]) for name in "ab"]
    for twin in twins:
        assert manager.allocate_slots(twin, 8) is not None
        manager.commit_step()
    assert stored(manager.take_events()) == [(CHAIN[:2], None)]
    manager.free(twins[0])
    serve(manager, ask("stranger", range(16)))
    (event,) = manager.take_events()
    assert isinstance(event, BlockStored)
    manager.free(twins[1])
    serve(manager, ask("stranger", range(20, 44)))
    assert set(CHAIN[:2]) < set(removed(manager.take_events()[:-1]))


@by_index
@pytest.mark.parametrize("chain", GOLDEN["chains"], ids=[chain["id"] for chain in GOLDEN["chains"]])
def test_namespaces_are_told_as_vllm_tells_them(
    index: str, chain: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    adapter = Adapter(*chain["adapter"]) if chain["adapter"] else None
    namespace = Namespace(adapter=adapter, salt=chain["salt"])
    manager = KVCacheManager(CacheConfig(8, chain["block_size"], index=index, enable_kv_cache_events=True))  # type: ignore[arg-type]
    run(manager, ask("r", chain["tokens"], namespace))
    (event,) = manager.take_events()
    assert isinstance(event, BlockStored)
    assert [digest.hex() for digest in event.block_hashes if isinstance(digest, bytes)] == chain["digests"]
    assert json.loads(json.dumps(event.extra_keys)) == chain["extra_keys"]
    assert event.lora_name == (chain["adapter"] or [None])[0]


def test_extra_keys_lose_their_tags_alone() -> None:  # item 64, and what images will bring
    assert _untagged((("lora", "lo", "/p"), ("cache_salt", "s"))) == ("lo", "s")
    assert _untagged((("mm", "A", 3),)) == (["A", 3],)  # type: ignore[arg-type]


@by_index
def test_off_means_nothing(index: str) -> None:  # item 65
    config = CacheConfig(8, 4, index=index, explain_misses=False)  # type: ignore[arg-type]
    manager = KVCacheManager(config)
    serve(manager, ask("r", A))
    assert manager.take_events() == []
    assert manager._events is None
    assert not manager._index._announcer._listeners  # type: ignore[attr-defined]  # both have one


def test_batches_are_numbered_from_their_epoch_without_gaps() -> None:
    config = CacheConfig(8, 4, enable_kv_cache_events=True)
    manager = KVCacheManager(config, epoch=1000)
    numbers = []
    for tokens in (A, A, [1, 2, 3, 4], [5, 6, 7, 8]):
        serve(manager, ask("r", tokens))
        numbers.append([(event.epoch, event.sequence) for event in manager.take_events()])
    assert numbers == [[(1000, 1001)], [], [(1000, 1002)], [(1000, 1003)]]


# -- the other side


def one(number: int, digest: int, parent: int | None = None) -> list[KVEvent]:
    return [BlockStored((digest,), parent, (digest,), 1, sequence=number)]


def test_a_replica_chains_what_one_event_stores() -> None:  # case 86
    replica = EventReplica()
    assert replica.apply([BlockStored((1, 2, 3), 9, (10, 11, 20, 21, 30, 31), 2, sequence=5)])
    assert replica.blocks == {
        1: ReplicaBlock(9, (10, 11)),
        2: ReplicaBlock(1, (20, 21)),
        3: ReplicaBlock(2, (30, 31)),
    }


def test_a_block_that_is_not_known_does_not_stop_a_removal() -> None:  # case 89
    replica = EventReplica()
    assert replica.apply([BlockStored((1, 2), None, (7, 8), 1)])
    assert replica.apply([BlockRemoved((1, 99, 2), sequence=1)])
    assert replica.blocks == {}


def test_a_replica_tells_a_gap_a_repeat_and_a_new_beginning_apart() -> None:
    replica = EventReplica()
    assert replica.apply(one(5, 1))
    assert replica.apply(one(6, 2, 1))
    assert replica.apply([BlockRemoved((1,), sequence=5)]), "known already"
    assert not replica.apply(one(8, 4)), "7 is missing"
    assert set(replica.blocks) == {1, 2}
    assert replica.next_sequence == 7
    assert replica.apply([AllBlocksCleared(sequence=100), *one(100, 3)]), "an engine that was started again"
    assert set(replica.blocks) == {3}
    assert replica.apply([])
    assert replica.next_sequence == 101
    replica.forget()
    assert replica.apply(one(200, 4))
    assert set(replica.blocks) == {4}
