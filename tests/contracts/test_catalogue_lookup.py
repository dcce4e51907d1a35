"""docs/catalogue.md, items 1 to 43: what is found, what is taken, and when it becomes findable."""

from __future__ import annotations

import pytest

from headstart.cache import CacheRequest, CacheStats, Namespace
from tests.cache.checked import FLAVOURS, admit, ask, cached, decode, reach, run, serve, state
from tests.contracts.catalogue import A, ours, pool

every_flavour = pytest.mark.parametrize("flavour", FLAVOURS)


@every_flavour
def test_item_14_namespaces_are_disjoint_worlds(flavour: str) -> None:
    """An empty key is no fourth world but an error, see item 5."""
    manager = pool(flavour, 17, block_size=1)
    worlds = [Namespace(), Namespace(salt="k1"), Namespace(salt="k2")]
    for number, world in enumerate(worlds):
        assert [cached(manager, [1, 2, 3, 0], world) for world in worlds] == [3] * number + [0] * (3 - number)
        assert serve(manager, ask(f"first in {number}", [1, 2, 3], world)).num_tokens == 0
    tables = []
    for number, world in enumerate(worlds):
        tables += admit(manager, ask(f"again in {number}", [1, 2, 3, 0], world)).block_ids
    assert len(set(tables)) == 9
    assert cached(manager, [1, 2, 3, 0], Namespace(salt="unknown")) == 0


@every_flavour
def test_item_18_of_a_prompt_that_is_cached_whole_the_last_block_is_computed(flavour: str) -> None:
    """The radix index computes the last token alone, by copying the others of its block."""
    manager = pool(flavour, 11)
    serve(manager, ask("first", A))
    assert run(manager, ask("same", A)).num_tokens == reach(manager, 8, 8)
    assert manager.block_table("same") == ours(1, 3)
    assert run(manager, ask("longer", [*A, 1])).num_tokens == 8
    assert manager.block_table("longer") == ours(1, 2, 4)


@every_flavour
def test_item_19_a_prompt_shorter_than_a_block(flavour: str) -> None:
    """The radix index keeps tails, so a later prompt finds the three tokens, and the same one two of them."""
    manager = pool(flavour, 6)
    assert cached(manager, []) == 0
    short = ask("short", A[:3])
    serve(manager, short)
    assert short.digests == []
    assert cached(manager, A[:3]) == reach(manager, 3, 3)
    assert cached(manager, A) == reach(manager, 3, 8)
    assert manager.num_free_blocks == 5


@every_flavour
def test_item_23_who_wants_its_prompts_logits_skips_reading_and_not_writing(flavour: str) -> None:
    manager = pool(flavour, 11)
    serve(manager, ask("first", [*A, 1]))
    scored = CacheRequest("scored", [*A, 2], skip_reading=True)
    assert run(manager, scored).num_tokens == 0
    taken_first = flavour == "hash-unhashed-first"  # the first one's unhashed block is at the front
    assert manager.block_table("scored") == (ours(3, 4, 5) if taken_first else ours(4, 5, 6))
    assert manager.stats == CacheStats(requests=1, queries=9)
    later = ask("later", [*A, 3])
    assert run(manager, later).block_ids == ours(1, 2)
    assert manager.block_table("later")[:2] == ours(1, 2)


@every_flavour
def test_item_23_what_it_writes_is_found(flavour: str) -> None:
    manager = pool(flavour, 11)
    scored = CacheRequest("scored", [*A, 2], skip_reading=True)
    run(manager, scored)
    assert manager.get_computed_blocks(ask("later", [*A, 3])).block_ids == ours(1, 2)


@every_flavour
def test_item_27_a_table_only_grows(flavour: str) -> None:
    manager = pool(flavour, 6)
    first = ask("first", range(6))
    run(manager, first)
    seen = [(manager.block_table("first"), cached(manager, range(10)))]
    for token in (6, 7, 8):
        decode(manager, first, [token])
        seen.append((manager.block_table("first"), cached(manager, range(10))))
    assert seen == [(ours(1, 2), 4), (ours(1, 2), 4), (ours(1, 2), 8), (ours(1, 2, 3), 8)]


@every_flavour
def test_item_28_no_room_changes_nothing(flavour: str) -> None:
    manager = pool(flavour, 5)
    serve(manager, ask("first", A))
    before = state(manager), manager.state_digest()
    long = ask("long", [*A, *range(20)])
    hit = manager.get_computed_blocks(long)
    assert (hit.num_tokens, manager.allocate_slots(long, 20, hit)) == (8, None)
    assert (state(manager), manager.state_digest()) == before
    assert manager.free_block_ids() == ours(3, 4, 2, 1)
    assert cached(manager, [*A, 1]) == 8
    assert manager.allocate_slots(long, 8, hit) is not None  # the same hit, a smaller chunk


@every_flavour
def test_item_28_nor_for_those_who_hold_a_part_of_the_hit(flavour: str) -> None:
    manager = pool(flavour, 5)
    serve(manager, ask("first", range(12)))
    holder = ask("holder", range(5))
    run(manager, holder)
    before = state(manager, holder), manager.state_digest()
    assert manager.free_block_ids() == ours(3, 2)
    long = ask("long", range(28))
    hit = manager.get_computed_blocks(long)
    assert hit.block_ids == ours(1, 2, 3)
    assert manager.allocate_slots(long, 16, hit) is None
    assert (state(manager, holder), manager.state_digest()) == before


@every_flavour
def test_item_29_free_blocks_of_the_hit_are_no_room(flavour: str) -> None:
    manager = pool(flavour, 5)
    serve(manager, ask("first", A))
    for length, granted in ((9, None), (8, ours(3, 4))):
        request = ask(f"{length} more", [*A, *range(length)])
        grant = manager.allocate_slots(request, length, manager.get_computed_blocks(request))
        assert (grant and grant.block_ids) == granted
    assert manager.num_free_blocks == 0


@every_flavour
def test_item_29_nor_where_the_hit_ends_inside_a_cached_run(flavour: str) -> None:
    manager = pool(flavour, 5)
    serve(manager, ask("first", [*A, 50, 51, 52, 53]))
    for length, granted in ((9, None), (8, ours(4, 3))):
        request = ask(f"{length} more", [*A, *range(length)])
        grant = manager.allocate_slots(request, length, manager.get_computed_blocks(request))
        assert (grant and grant.block_ids) == granted
    assert manager.num_free_blocks == 0


@every_flavour
def test_item_37_a_chunked_prompt_shows_what_it_has_slots_for(flavour: str) -> None:
    """What a running request has not filled is found in neither index: its slots are still written."""
    manager = pool(flavour, 11)
    first = ask("first", range(16))
    for chunk, table, found in ((6, ours(1, 2), 4), (6, ours(1, 2, 3), 12), (4, ours(1, 2, 3, 4), 16)):
        assert manager.allocate_slots(first, chunk) is not None
        assert manager.block_table("first") == table
        assert cached(manager, range(17)) == found  # in the step itself already, and after it
        manager.commit_step()
        assert cached(manager, range(17)) == found
