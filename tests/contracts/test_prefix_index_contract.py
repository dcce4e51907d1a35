"""What both indexes owe to whoever calls the manager, `check()` after every call.

They differ in one thing only: `hash` finds whole blocks, `radix` goes to the token where it may copy.
Room and eviction, transactions and misuse, which are as common to both, are in tests/cache.
Numbers in comments are those of the conformance catalogue (items) and the collected cases.
"""

from __future__ import annotations

from typing import Any

import pytest

from headstart.cache import Adapter, CacheRequest, MediaSpan, Namespace, PromptEmbeds
from headstart.errors import CacheError, RequestError
from tests.cache.checked import (
    FLAVOURS,
    CheckedManager,
    Make,
    admit,
    ask,
    cached,
    decode,
    make_manager,
    reach,
    run,
    serve,
    state,
)

A = list(range(100, 108))  # two full blocks


@pytest.fixture(params=FLAVOURS)
def make(request: pytest.FixtureRequest) -> Make:
    def build(num_blocks: int, block_size: int = 4, **options: Any) -> CheckedManager:
        return make_manager(num_blocks, block_size, **FLAVOURS[request.param] | options)

    return build


# What is found


def test_a_finished_prompt_is_found_as_far_as_the_index_can(make: Make) -> None:
    for length in range(1, 14):  # item 1, 19; case 25
        manager = make(16)
        serve(manager, ask("first", range(length)))
        for more in range(1, 14):
            assert cached(manager, range(length + more)) == reach(manager, length, length + more)


def test_the_last_token_is_computed_even_if_all_are_cached(make: Make) -> None:
    for length in range(1, 14):  # item 18, case 24
        manager = make(16)
        serve(manager, ask("first", range(length)))
        again = ask("again", range(length))
        hit = admit(manager, again)
        assert hit.num_tokens == reach(manager, length, length) < length
        manager.commit_step()
        manager.free(again)
        # The chain is still whole after the second run.
        assert cached(manager, range(length + 1)) == reach(manager, length, length + 1)


def test_equal_blocks_behind_other_beginnings_are_not_equal(make: Make) -> None:
    manager = make(16)  # item 2, case 2
    serve(manager, ask("first", [1, 2, 3, 4, 9, 9, 9, 9]))
    assert cached(manager, [9, 9, 9, 9, 1]) == 0
    assert cached(manager, [7, 7, 7, 7, 9, 9, 9, 9, 1]) == 0
    assert cached(manager, [1, 2, 3, 4, 9, 9, 9, 9, 1]) == 8


def test_a_prompt_of_one_token_is_served(make: Make) -> None:
    manager = make(2)  # case 24
    first = ask("first", [5])
    assert run(manager, first).num_tokens == 0
    assert len(manager.block_table("first")) == 1
    manager.free(first)
    assert cached(manager, [5]) == 0


def test_decoded_tokens_are_found_like_prompt_tokens(make: Make) -> None:
    manager = make(16)  # items 3, 39; case 34
    first = ask("first", range(6))
    run(manager, first)
    decode(manager, first, range(6, 11))
    first.append(11)  # sampled, but never computed: it has no K and V
    manager.free(first)
    assert cached(manager, range(16)) == reach(manager, 11, 16)


def test_a_turn_with_its_answer_is_found_by_the_next_turn(make: Make) -> None:
    manager = make(40, block_size=16)  # case 34
    first = ask("turn 1", range(100))
    run(manager, first)
    decode(manager, first, range(100, 149))
    first.append(149)
    manager.free(first)
    assert cached(manager, range(200)) == (149 if manager.config.index == "radix" else 144)


def test_what_a_request_is_called_does_not_matter(make: Make) -> None:
    manager = make(16)  # item 10
    serve(manager, ask("session 1", range(9)))
    assert admit(manager, ask("session 2", [*range(8), 50])).num_tokens == 8


def test_a_lookup_changes_nothing(make: Make) -> None:
    manager = make(10)  # item 21
    serve(manager, ask("old", range(10)))
    serve(manager, ask("other", range(50, 60)))
    live = ask("live", [*range(8), 70])
    run(manager, live)
    before = state(manager, live)
    for tokens in ([1], range(3), range(10), [*range(6), 80, 81], range(50, 70)):
        manager.get_computed_blocks(ask("probe", tokens))
    assert state(manager, live) == before


# Namespaces

NAMESPACES = [
    Namespace(),
    Namespace(salt="X"),
    Namespace(salt="Y"),
    Namespace(adapter=Adapter("X", "1")),
    Namespace(adapter=Adapter("X", "2")),  # item 6, cases 6 and 7: other weights under the same name
    Namespace(adapter=Adapter("Y", "1")),
    Namespace(adapter=Adapter("X", "1"), salt="X"),
    Namespace(adapter=Adapter("1", "X")),
]


def test_nothing_is_found_in_another_namespace(make: Make) -> None:
    for own in NAMESPACES:  # items 5, 6; cases 3, 8, 20, 21
        manager = make(16)
        serve(manager, ask("first", A, own))
        found = {other: cached(manager, [*A, 1], other) for other in NAMESPACES}
        assert found == {other: 8 if other == own else 0 for other in NAMESPACES}


def test_a_second_tenant_computes_everything_and_then_hits_its_own(make: Make) -> None:
    manager = make(16)  # cases 20, 21
    for salt in ("s1", "s2"):
        assert serve(manager, ask(f"{salt} cold", range(16), Namespace(salt=salt))).num_tokens == 0
    for salt in ("s1", "s2"):
        hit = admit(manager, ask(f"{salt} warm", range(16), Namespace(salt=salt)))
        assert hit.num_tokens == reach(manager, 16, 16)
    assert not set(manager.block_table("s1 warm")) & set(manager.block_table("s2 warm"))


def test_an_empty_salt_is_a_mistake() -> None:
    with pytest.raises(RequestError, match="cache_salt must be a non-empty string") as caught:
        Namespace(salt="")  # item 5 as headstart has it, case 22
    assert (caught.value.param, caught.value.status) == ("cache_salt", 400)


# Sharing


def test_requests_of_one_step_share_what_they_have_in_common(make: Make) -> None:
    manager = make(16)  # item 38
    first, second = ask("first", [*A, 1, 2]), ask("second", [*A, 3])
    admit(manager, first)
    assert admit(manager, second).num_tokens == 8
    tables = [manager.block_table(name) for name in ("first", "second")]
    assert tables[0][:2] == tables[1][:2]
    assert tables[0][2] != tables[1][2]
    manager.commit_step()
    assert manager.free(first) == ()
    assert manager.num_free_blocks == 16 - 3


def test_a_hit_and_a_miss_in_one_step_keep_their_own_tables(make: Make) -> None:
    manager = make(16)  # case 32
    serve(manager, ask("old", A))
    hit, miss = ask("hit", [*A, 1, 2, 3, 4]), ask("miss", range(50, 62))
    assert admit(manager, hit).num_tokens == 8
    assert admit(manager, miss).num_tokens == 0
    tables = [manager.block_table("hit"), manager.block_table("miss")]
    assert [len(table) for table in tables] == [3, 3]
    assert len({*tables[0], *tables[1]}) == 6
    manager.commit_step()
    assert tables == [manager.block_table("hit"), manager.block_table("miss")]


def test_a_hit_on_blocks_in_use_takes_none_from_the_free_ones(make: Make) -> None:
    manager = make(16)  # item 25
    first = ask("first", [*A, 1])
    run(manager, first)
    free = manager.free_block_ids()
    second = ask("second", [*A, 2])
    run(manager, second)
    assert manager.block_table("second") == [*manager.block_table("first")[:2], free[0]]
    assert manager.free_block_ids() == free[1:]
    manager.free(first)  # item 47: what the second still holds stays in use
    assert not set(manager.block_table("second")) & set(manager.free_block_ids())
    assert cached(manager, [*A, 3]) == 8


def test_a_hit_on_free_blocks_takes_them_out_of_the_free_ones(make: Make) -> None:
    manager = make(16)  # item 25
    first = ask("first", A)
    run(manager, first)
    table = manager.block_table("first")
    manager.free(first)
    assert manager.num_free_blocks == 16
    second = ask("second", [*A, 2])
    run(manager, second)
    assert manager.block_table("second")[:2] == table
    assert not set(table) & set(manager.free_block_ids())
    assert manager.num_free_blocks == 13


def test_a_block_that_was_taken_is_not_a_hit(make: Make) -> None:
    manager = make(2)  # item 32, cases 26 and 27
    serve(manager, ask("a", [1, 2, 3, 4]))
    serve(manager, ask("b", [5, 6, 7, 8]))
    other = ask("c", [9, 9, 9])
    assert run(manager, other).num_tokens == 0
    assert cached(manager, [1, 2, 3, 4, 0]) == 0  # the least recently used one went
    assert cached(manager, [5, 6, 7, 8, 0]) == 4
    manager.free(other)
    assert cached(manager, [9, 9, 9, 0]) == reach(manager, 3, 4)


# Tables


def test_a_table_keeps_its_blocks_when_an_equal_one_is_cached(make: Make) -> None:
    manager = make(8)  # items 27, 40; radix: 75
    first, second = ask("first", range(8)), ask("second", range(7))
    for request in (first, second):  # side by side, without looking
        assert manager.allocate_slots(request, 7) is not None
        manager.commit_step()
    table = manager.block_table("second")
    decode(manager, first, [])
    second.append(7)
    for request in (first, second):
        assert manager.allocate_slots(request, 1) is not None
        manager.commit_step()
    assert manager.block_table("second") == table
    assert not set(table) & set(manager.block_table("first"))
    assert cached(manager, range(9)) == 8
    manager.free(first)
    manager.free(second)
    assert manager.num_free_blocks == 8
    assert cached(manager, range(9)) == 8


def test_block_table_is_a_copy(make: Make) -> None:
    manager = make(4)
    first = ask("first", range(4))
    run(manager, first)
    manager.block_table("first").clear()
    assert len(manager.block_table("first")) == 1


# What stands behind equal tokens

P, Q = "0" * 60 + "beef", "1" * 60 + "beef"  # case 10: equal in the last 16 bits


def showing(name: str, tokens: list[int], *places: tuple[str, int, int]) -> CacheRequest:
    return CacheRequest(name, tokens, media=[MediaSpan(*place) for place in places])


def test_another_image_behind_the_same_tokens_is_another_content(make: Make) -> None:
    tokens = [1, 2, *[99] * 6, *range(50, 58)]  # cases 10 and 11
    manager = make(16)
    serve(manager, showing("first", tokens, (P, 2, 6)))
    other = manager.get_computed_blocks(showing("other", tokens, (Q, 2, 6)))
    assert other.num_tokens == reach(manager, 2, 16)
    assert manager.get_computed_blocks(showing("same", tokens, (P, 2, 6))).num_tokens == reach(
        manager, 16, 16
    )
    assert cached(manager, tokens) == reach(manager, 2, 16)  # the same tokens as text


def test_images_swapped_or_moved_share_what_comes_before_them(make: Make) -> None:
    tokens = [1, 2, 3, 4, 1, 1, *[99] * 5, 1, 1, *[99] * 3, *range(50, 60)]  # case 12
    manager = make(32)
    serve(manager, showing("first", tokens, (P, 6, 5), (Q, 13, 3)))
    for others, shared in (
        ([(Q, 6, 5), (P, 13, 3)], 6),
        ([(P, 7, 5), (Q, 13, 3)], 6),
        ([(P, 6, 5), (P, 13, 3)], 13),
        ([(P, 6, 5), (Q, 12, 3)], 12),
        ([(P, 6, 5), (Q, 13, 3)], 25),
    ):
        hit = manager.get_computed_blocks(showing("other", tokens, *others))
        assert hit.num_tokens == reach(manager, shared, 26)


def test_an_image_may_go_on_behind_what_is_computed(make: Make) -> None:
    manager = make(16)
    request = showing("first", [1, *[99] * 12, 2, 3], (P, 1, 12))
    for chunk in (6, 4, 5):
        assert manager.allocate_slots(request, chunk) is not None
        manager.commit_step()
    decode(manager, request, range(10, 16))
    manager.free(request)
    again = showing("again", [1, *[99] * 12, 2, 3, *range(10, 20)], (P, 1, 12))
    assert manager.get_computed_blocks(again).num_tokens == reach(manager, 21, 25)


def test_other_embeddings_share_nothing_and_equal_ones_do(make: Make) -> None:
    manager = make(16)  # case 15

    def embedded(rows: bytes) -> CacheRequest:
        return CacheRequest("r", [0] * 9, prompt_embeds=PromptEmbeds(rows, 9))

    rows = bytes(range(18))
    serve(manager, embedded(rows))
    assert manager.get_computed_blocks(embedded(rows)).num_tokens == 8
    assert manager.get_computed_blocks(embedded(rows[::-1])).num_tokens == 0
    assert manager.get_computed_blocks(embedded(rows[:10] + rows[:8])).num_tokens == 4
    assert cached(manager, [0] * 9) == 0


def test_a_fork_shows_the_same_images(make: Make) -> None:
    tokens = [1, *[99] * 4, 2]
    manager = make(16)
    parent = showing("parent", tokens, (P, 1, 4))
    run(manager, parent)
    for wrong in (showing("child", [*tokens, 3], (Q, 1, 4)), ask("child", [*tokens, 3])):
        with pytest.raises(CacheError, match="is no fork of"):
            manager.fork(parent, wrong)
    child = showing("child", [*tokens, 3], (P, 1, 4))
    manager.fork(parent, child)
    assert manager.allocate_slots(child, 1) is not None
    manager.commit_step()
    manager.free(parent)
    manager.free(child)
    assert manager.get_computed_blocks(showing("again", [*tokens, 3, 4], (P, 1, 4))).num_tokens == reach(
        manager, 7, 8
    )
