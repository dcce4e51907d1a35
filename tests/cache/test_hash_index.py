"""The `hash` index to the letter: which block, in which order.

The conformance catalogue (item numbers in comments) counts blocks from 1, because vLLM's block 0 is its
null block; headstart has none, so every id is one less here, and pools have one block less.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, get_args

import pytest

from headstart.cache import Adapter, CacheRequest, KVCacheManager, MediaSpan, Namespace, PromptEmbeds
from headstart.cache.blocks import BlockPool
from headstart.cache.hashing import ALGORITHMS, Algorithm, Hash, block_hash_chain
from headstart.config import PolicyName
from headstart.errors import CacheError
from tests.cache.checked import CheckedManager, admit, ask, cached, decode, make_manager, run, serve

A = list(range(100, 108))  # two full blocks


def hash_manager(num_blocks: int, block_size: int = 4, **options: Any) -> CheckedManager:
    return make_manager(num_blocks, block_size, index="hash", **options)


def unhashed_first(num_blocks: int, block_size: int = 4) -> CheckedManager:
    return hash_manager(num_blocks, block_size, free_order="unhashed_first")


def digest_of(manager: KVCacheManager, block_id: int) -> bytes | None:
    pool: BlockPool = manager._index._pool  # type: ignore[attr-defined]  # of the hash index
    return pool.blocks[block_id].digest


def hashed(manager: KVCacheManager, name: str) -> list[bool]:
    """Which blocks of the table are findable."""
    return [digest_of(manager, block_id) is not None for block_id in manager.block_table(name)]


def test_the_worked_example_of_the_design() -> None:
    manager = hash_manager(10)
    prompt = list(range(15))

    # 1: request 0 with 15 prompt tokens
    zero = ask("0", prompt)
    assert run(manager, zero).num_tokens == 0
    assert manager.block_table("0") == [0, 1, 2, 3]
    assert hashed(manager, "0") == [True, True, True, False]

    # 2: one decoded token fills block 3, the next one needs room
    decode(manager, zero, [15])
    assert manager.block_table("0") == [0, 1, 2, 3]
    assert hashed(manager, "0") == [True, True, True, True]
    decode(manager, zero, [16])
    assert manager.block_table("0") == [0, 1, 2, 3, 4]
    assert hashed(manager, "0") == [True, True, True, True, False]

    # 3: request 1 with 14 tokens, the first 10 equal
    one = ask("1", [*prompt[:10], 90, 91, 92, 93])
    hit = run(manager, one)
    assert (hit.block_ids, hit.num_tokens) == ([0, 1], 8)
    assert manager.block_table("1") == [0, 1, 5, 6]

    # 4: request 0 finishes
    manager.free(zero)
    assert manager.free_block_ids() == [7, 8, 9, 4, 3, 2]

    # 5: request 1 finishes
    manager.free(one)
    assert manager.free_block_ids() == [7, 8, 9, 4, 3, 2, 6, 5, 1, 0]

    # 6: request 2 with 29 tokens, the first 12 equal to request 0
    two = ask("2", [*prompt[:12], *range(60, 77)])
    hit = manager.get_computed_blocks(two)
    assert (hit.block_ids, hit.num_tokens) == ([0, 1, 2], 12)
    touched = manager.allocate_slots(two, 1, hit)
    assert touched is not None
    assert touched.block_ids == [7]
    assert manager.free_block_ids() == [8, 9, 4, 3, 6, 5]
    rest = manager.allocate_slots(two, 16)
    assert rest is not None
    assert manager.block_table("2") == [0, 1, 2, 7, 8, 9, 4, 3]
    assert hashed(manager, "2") == [*[True] * 7, False]
    assert manager.free_block_ids() == [6, 5]
    manager.commit_step()
    assert cached(manager, [*prompt, 15, 0]) == 12  # block 3 was evicted


def test_two_copies_of_a_block_live_under_one_digest() -> None:
    manager = hash_manager(10, block_size=3)  # the duplicate-block example: ABCDEF, then GHI
    prompt, output = list("ABCDEF"), [ord(letter) for letter in "GHI"]
    tokens = [ord(letter) for letter in prompt]
    first, second = ask("first", tokens), ask("second", tokens)
    run(manager, first)
    assert manager.block_table("first") == [0, 1]
    decode(manager, first, output)
    assert manager.block_table("first") == [0, 1, 2]
    assert run(manager, second).num_tokens == 3  # the last block is computed again, for its logits
    assert manager.block_table("second") == [0, 3]
    decode(manager, second, output)
    assert manager.block_table("second") == [0, 3, 4]
    assert digest_of(manager, 1) == digest_of(manager, 3) is not None
    assert digest_of(manager, 2) == digest_of(manager, 4) is not None
    assert manager.get_computed_blocks(ask("third", [*tokens, 0])).block_ids == [0, 1]
    manager.free(second)
    assert digest_of(manager, 3) is digest_of(manager, 4) is None
    assert manager.get_computed_blocks(ask("third", [*tokens, *output, 0])).block_ids == [0, 1, 2]


def test_the_second_copy_is_found_when_the_first_is_gone() -> None:
    manager = hash_manager(4)  # items 40, 41
    first, second = ask("first", A), ask("second", A)
    for request in (first, second):  # without looking
        assert manager.allocate_slots(request, 8) is not None
    manager.commit_step()
    assert (manager.block_table("first"), manager.block_table("second")) == ([0, 1], [2, 3])
    probe = ask("probe", [*A, 1])
    assert manager.get_computed_blocks(probe).block_ids == [0, 1]
    manager.free(first)
    assert manager.free_block_ids() == [1, 0]
    run(manager, ask("taker", [1]))  # takes block 1
    assert manager.get_computed_blocks(probe).block_ids == [0, 3]


@pytest.mark.parametrize("freed_first", ["first", "second"])
def test_an_extra_copy_is_forgotten_with_its_request(freed_first: str) -> None:
    manager = hash_manager(8)  # item 40, as headstart has it
    requests = {name: ask(name, A) for name in ("first", "second")}
    for request in requests.values():
        assert manager.allocate_slots(request, 8) is not None
    manager.commit_step()
    digests = [digest_of(manager, block_id) for block_id in (0, 1)]
    manager.free(requests.pop(freed_first))
    manager.free(*requests.values())
    assert [digest_of(manager, block_id) for block_id in range(4)] == [*digests, None, None]
    assert cached(manager, [*A, 1]) == 8


def test_the_middle_one_of_three_copies_can_go() -> None:
    manager = hash_manager(6)  # item 41
    requests = [ask(name, A[:4]) for name in ("first", "second", "third")]
    for request in requests:
        assert manager.allocate_slots(request, 4) is not None
    manager.commit_step()
    manager.free(requests[1])
    assert [digest_of(manager, block_id) is not None for block_id in range(3)] == [True, False, True]
    assert manager.get_computed_blocks(ask("probe", A)).block_ids == [0]


def test_of_the_copies_left_the_oldest_is_found() -> None:
    manager = hash_manager(3)
    requests = [ask(name, A[:4]) for name in ("first", "second", "third")]
    for request in requests:
        assert manager.allocate_slots(request, 4) is not None
        manager.commit_step()
    manager.free(requests[0])
    run(manager, ask("taker", [1]))  # takes block 0
    assert manager.get_computed_blocks(ask("probe", A)).block_ids == [1]


def test_the_first_copy_takes_the_place_of_the_one_freed() -> None:
    # Law I7: its content was in use until now, so it must not be evicted before what was built on it.
    manager = hash_manager(5)
    first, second = ask("first", A[:4]), ask("second", A)
    for request, count in ((first, 4), (second, 8)):
        assert manager.allocate_slots(request, count) is not None
    manager.commit_step()
    manager.free(first)
    assert manager.free_block_ids() == [3, 4, 0]
    manager.free(second)  # [1, 2]; block 1 repeats block 0
    assert manager.free_block_ids() == [3, 4, 2, 1, 0]


@pytest.mark.parametrize("policy", get_args(PolicyName))
def test_a_pending_copy_does_not_take_the_place_of_what_others_continue(policy: str) -> None:
    manager = hash_manager(4, 1, policy=policy)
    serve(manager, ask("a", [1, 2]))
    copy, taker = ask("copy", [1, 5]), ask("taker", [7, 8])
    manager.allocate_slots(copy, 1)  # without looking: fills the first block again
    manager.allocate_slots(taker, 2)  # takes the last unused block and one of the two that are cached
    manager.rollback_step()
    assert cached(manager, [1, 2, 3]) == 1


@pytest.mark.parametrize("policy", get_args(PolicyName))
def test_a_written_copy_takes_the_place_of_what_others_continue(policy: str) -> None:
    manager = hash_manager(4, 1, policy=policy)
    serve(manager, ask("a", [1, 2]))
    copy = ask("copy", [1, 5])
    manager.allocate_slots(copy, 1)
    manager.commit_step()
    assert len(manager.free_block_ids()) == 3
    assert manager.allocate_slots(ask("taker", [7, 8, 9]), 3) is not None
    manager.commit_step()
    assert cached(manager, [1, 2, 3]) == 1


@pytest.mark.parametrize("policy", get_args(PolicyName))
def test_a_free_block_goes_though_what_continues_its_pending_copy_is_held(policy: str) -> None:
    manager = hash_manager(3, 1, policy=policy)
    first = ask("first", [1])
    run(manager, first)
    twin = ask("twin", [1, 2])
    manager.allocate_slots(twin, 2)  # without looking
    manager.free(first)
    assert manager.free_block_ids() == [0]
    assert manager.allocate_slots(ask("taker", [7]), 1) is not None
    manager.commit_step()
    assert cached(manager, [1, 2, 3]) == 2


@pytest.mark.parametrize("policy", get_args(PolicyName))
def test_a_fork_is_no_use_of_a_free_copy(policy: str) -> None:
    manager = hash_manager(6, 1, policy=policy)
    first, twin, other = ask("first", [1]), ask("twin", [1]), ask("other", [2])
    run(manager, first)
    manager.allocate_slots(twin, 1)  # without looking
    manager.commit_step()
    run(manager, other)
    manager.free(first)  # its block is found first, so it stays findable
    manager.free(other)
    free = manager.free_block_ids()
    manager.fork(twin, ask("child", [1, 2]))
    assert manager.free_block_ids() == free


@pytest.mark.parametrize("policy", get_args(PolicyName))
def test_a_pin_ends_where_the_copy_that_carried_it_on_is_taken_back(policy: str) -> None:
    manager = hash_manager(2, 1, policy=policy, max_pinned_share=1.0)
    serve(manager, ask("a", [1]))
    manager.pin(ask("pin", [1]), 100.0)
    manager.allocate_slots(ask("copy", [1, 2]), 1)
    manager.allocate_slots(ask("taker", [7]), 1)  # there is nothing else to take
    assert [pin.num_blocks for pin in manager.pins] == [1]  # it lives on in the copy
    manager.rollback_step()
    assert [pin.num_blocks for pin in manager.pins] == [0]
    assert manager.unpin("pin")


def test_blocks_of_a_hit_are_not_published_again() -> None:
    manager = hash_manager(8)  # item 42
    serve(manager, ask("first", A))
    digests = [digest_of(manager, block_id) for block_id in (0, 1)]
    run(manager, ask("second", [*A, 1, 2, 3, 4]))
    assert manager.block_table("second")[:2] == [0, 1]
    assert [digest_of(manager, block_id) for block_id in (0, 1)] == digests
    assert hashed(manager, "second") == [True, True, True]


def test_a_block_is_published_once() -> None:
    manager = hash_manager(8)  # item 42
    first = ask("first", A)
    run(manager, first)
    lease = manager._holdings["first"].lease
    lease.num_published = 0
    with pytest.raises(CacheError, match=r"Block\(0, ref_count=1\) carries a digest already"):
        manager._index.publish(lease, 2)


def test_a_recycled_block_has_no_digest() -> None:
    manager = hash_manager(1)  # item 32
    serve(manager, ask("first", [1, 2, 3, 4]))
    assert digest_of(manager, 0) is not None
    run(manager, ask("second", [9, 9, 9]))
    assert hashed(manager, "second") == [False]


# Orders


def test_without_hashes_blocks_of_a_freed_request_are_taken_last_block_first() -> None:
    manager = make_manager(5, index="hash", enable_prefix_caching=False)  # item 22
    serve(manager, ask("first", A))
    assert manager.free_block_ids() == [1, 0, 2, 3, 4]
    run(manager, ask("again", [*A, 1]))
    assert manager.block_table("again") == [1, 0, 2]


def test_of_several_unhashed_blocks_the_last_goes_first() -> None:
    manager = unhashed_first(7)  # item 45: blocks 2 and 3 are held for tokens not computed yet
    first = ask("first", range(16))
    admit(manager, first, 8)
    manager.commit_step()
    assert manager.allocate_slots(first, 7) is not None
    manager.rollback_step()
    assert manager.block_table("first") == [0, 1]
    manager.free(first)
    assert manager.free_block_ids() == [2, 3, 4, 5, 6, 1, 0]


def test_a_shared_block_is_freed_with_its_last_request() -> None:
    manager = unhashed_first(9)  # item 47
    a, b = ask("a", [*A, 1]), ask("b", [*A, 2])
    run(manager, a)
    assert run(manager, b).num_tokens == 8
    assert manager.block_table("b") == [0, 1, 3]
    assert [manager._index._pool.blocks[block_id].ref_count for block_id in range(4)] == [2, 2, 1, 1]
    manager.free(a)
    assert manager.free_block_ids() == [2, 4, 5, 6, 7, 8]
    assert [manager._index._pool.blocks[block_id].ref_count for block_id in range(4)] == [1, 1, 0, 1]
    manager.free(b)
    assert manager.free_block_ids() == [3, 2, 4, 5, 6, 7, 8, 1, 0]


def test_a_stranger_takes_the_tail_of_a_preempted_request() -> None:
    manager = unhashed_first(5)  # item 54
    victim = ask("victim", range(12))
    serve(manager, victim)
    assert manager.free_block_ids() == [3, 4, 2, 1, 0]
    run(manager, ask("stranger", range(50, 62)))
    assert manager.block_table("stranger") == [3, 4, 2]
    assert manager.get_computed_blocks(victim).num_tokens == 8


# Equal digests are not enough (law I5)


@dataclass
class Hashed:
    """A `Hash` with a digest of the test's choice."""

    value: bytes

    def digest(self) -> bytes:
        return self.value


@pytest.fixture
def sevens(monkeypatch: pytest.MonkeyPatch) -> CheckedManager:
    """A manager whose hash is 7 whatever it is taken of (case 2)."""
    everything = Algorithm(lambda _: Hashed(bytes(31) + b"\7"), 32, is_cbor=True)
    monkeypatch.setitem(ALGORITHMS, "sha256_cbor", everything)
    return hash_manager(12)


def test_other_content_under_an_equal_digest_is_no_hit(sevens: CheckedManager) -> None:
    serve(sevens, ask("first", [1, 2, 3, 4, 0]))
    assert cached(sevens, [1, 2, 3, 4, 9]) == 4
    assert sevens.num_collisions == 0
    assert cached(sevens, [9, 9, 9, 9, 9]) == 0
    assert sevens.num_collisions == 1


def test_an_equal_block_behind_another_is_no_hit(sevens: CheckedManager) -> None:
    serve(sevens, ask("first", [1, 2, 3, 4, 1, 2, 3, 4, 0]))  # of the two only the first is findable
    assert sevens.num_collisions == 1
    assert cached(sevens, [1, 2, 3, 4, 1, 2, 3, 4, 0]) == 4
    assert cached(sevens, [0, 0, 0, 0, 1, 2, 3, 4, 0]) == 0


def test_equal_tokens_of_other_content_are_no_hit(sevens: CheckedManager) -> None:
    tokens = [1, 2, 3, 4, 0]
    others: list[dict[str, Any]] = [
        {"namespace": Namespace(salt="s")},
        {"namespace": Namespace(Adapter("a", "1"))},
        {"media": [MediaSpan("cafe" * 4, 0, 2)]},
        {"prompt_embeds": PromptEmbeds(b"abcd", 4)},
    ]
    serve(sevens, ask("first", tokens))
    for number, other in enumerate(others, start=1):
        request = CacheRequest("other", tokens, **other)
        for _ in range(3):  # counted once for a request, however often it is looked up
            assert sevens.get_computed_blocks(request).num_tokens == 0
        assert serve(sevens, request).num_tokens == 0
        assert sevens.num_collisions == number


def test_what_collides_is_not_pinned(sevens: CheckedManager) -> None:
    serve(sevens, ask("first", [1, 2, 3, 4, 0]))
    pin = sevens.pin(ask("other", [9, 9, 9, 9, 0]), 1.0)
    assert pin is not None
    assert pin.num_blocks == 0


def test_what_collides_is_not_published_nor_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    def weak(data: bytes) -> Hash:
        """SHA-256, but for messages with a token 99: those collide."""
        return Hashed(bytes(32)) if b"\x18\x63" in data else hashlib.sha256(data)

    monkeypatch.setitem(ALGORITHMS, "sha256_cbor", Algorithm(weak, 32, is_cbor=True))
    manager = hash_manager(12)
    serve(manager, ask("first", [1, 2, 3, 4, 99, 0, 0, 0, 5, 6, 7, 8, 0]))
    request = ask("second", [1, 2, 3, 4, 99, 1, 1, 1, 5, 6, 7, 8, 9, 9, 9, 9, 0])
    assert run(manager, request).num_tokens == 4
    decode(manager, request, [1, 2, 3, 4])
    assert manager.num_collisions == 1
    assert hashed(manager, "second") == [True, False, False, False, False, False]
    assert cached(manager, [1, 2, 3, 4, 99, 0, 0, 0, 5, 6, 7, 8, 0]) == 12
    assert cached(manager, [1, 2, 3, 4, 99, 1, 1, 1, 5, 6, 7, 8, 0]) == 4
    manager.free(request)
    assert len(manager.free_block_ids()) == 12


def test_what_follows_a_collision_may_collide_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def weak(data: bytes) -> Hash:
        """SHA-256, but for messages with a token 98 or 99: those collide with their like."""
        for token in (b"\x18\x62", b"\x18\x63"):
            if token in data:
                return Hashed(token * 16)
        return hashlib.sha256(data)

    monkeypatch.setitem(ALGORITHMS, "sha256_cbor", Algorithm(weak, 32, is_cbor=True))
    manager = hash_manager(12)
    serve(manager, ask("first", [1, 2, 3, 4, 99, 0, 0, 0, 5]))
    serve(manager, ask("second", [1, 2, 3, 4, 99, 1, 1, 1, 98, 0, 0, 0, 98, 1, 1, 1, 5]))
    assert manager.num_collisions == 1
    assert cached(manager, [1, 2, 3, 4, 99, 0, 0, 0, 5]) == 8


def test_a_fork_of_what_collides_is_whole(sevens: CheckedManager) -> None:
    serve(sevens, ask("first", [9, 9, 9, 9, 9]))
    parent, child = ask("parent", range(10)), ask("child", [*range(10), 1])
    run(sevens, parent)
    sevens.fork(parent, child)
    assert sevens.allocate_slots(child, 1) is not None
    sevens.commit_step()
    sevens.free(parent)
    sevens.free(child)
    assert cached(sevens, range(10)) == 0


def test_forks_of_what_collides_do_not_publish_it_both(sevens: CheckedManager) -> None:
    other, parent = ask("other", [1, 2, 3, 4]), ask("parent", [5, 6, 7, 8])
    child = ask("child", [5, 6, 7, 8, 9, 9])
    run(sevens, other)
    run(sevens, parent)  # collides
    sevens.fork(parent, child)
    sevens.free(other)
    assert sevens.allocate_slots(ask("taker", range(44)), 44) is not None  # takes all that is left
    sevens.rollback_step()
    decode(sevens, parent, [9])
    assert sevens.allocate_slots(child, 1) is not None
    sevens.commit_step()
    assert cached(sevens, [5, 6, 7, 8, 0]) == 0


def test_a_collision_that_is_taken_back_was_none(sevens: CheckedManager) -> None:
    one, two = ask("one", [1, 2, 3, 4]), ask("two", [5, 6, 7, 8])
    admit(sevens, two, 3)
    sevens.commit_step()
    admit(sevens, one)
    assert sevens.allocate_slots(two, 1) is not None
    sevens.rollback_step()
    assert sevens.allocate_slots(two, 1) is not None
    sevens.commit_step()
    assert cached(sevens, [5, 6, 7, 8, 0]) == 4


def test_a_withdrawn_block_leaves_its_digest_to_others(sevens: CheckedManager) -> None:
    first = ask("first", [1, 2, 3, 4, 0])
    admit(sevens, first)
    sevens.rollback_step()
    serve(sevens, ask("second", [5, 6, 7, 8, 0]))
    assert (cached(sevens, [5, 6, 7, 8, 0]), sevens.num_collisions) == (4, 0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_finds_what_is_there(algorithm: str) -> None:
    manager = hash_manager(3000, hash_algorithm=algorithm)
    tokens = [number * 7919 % 100_003 for number in range(9000)]  # more blocks than are looked up at once
    serve(manager, ask("first", tokens))
    assert cached(manager, tokens) == 8996
    assert cached(manager, [*tokens[:4000], 1, *tokens[4001:]]) == 4000
    assert manager.num_collisions == 0


def test_a_request_can_be_looked_up_by_hash_before_it_is_whole() -> None:
    manager, tokens = hash_manager(3000), list(range(9000))
    request = ask("first", tokens)
    assert manager.get_computed_blocks(request).num_tokens == 0
    for chunk in (3000, 3000, 3000):
        assert manager.allocate_slots(request, chunk) is not None
        manager.commit_step()
    assert request.digests == block_hash_chain(tokens, block_size=4)
