"""The `radix` index through the manager: to the token, by copying; tails; one path once."""

from __future__ import annotations

import random

import pytest

from headstart.cache import BlockCopy, CacheRequest, MediaSpan, PartialBlock, PromptEmbeds
from tests.cache.checked import CheckedManager, admit, ask, cached, decode, make_manager, run, serve

A = list(range(100, 108))  # two full blocks


def radix(num_blocks: int, block_size: int = 4) -> CheckedManager:
    return make_manager(num_blocks, block_size, index="radix")


def num_nodes(manager: CheckedManager) -> int:
    return len(manager._index._tree.nodes())  # type: ignore[attr-defined]  # of the radix index


def side_by_side(manager: CheckedManager, *requests: CacheRequest) -> None:
    """Compute the requests in steps of their own, none of them having looked for a hit."""
    for request in requests:
        assert manager.allocate_slots(request, request.num_tokens) is not None
        manager.commit_step()


# Copies


def test_the_block_that_differs_is_copied_as_far_as_it_is_equal() -> None:
    manager = radix(8)
    serve(manager, ask("first", A))
    again = ask("again", A)
    hit = manager.get_computed_blocks(again)
    assert (hit.num_tokens, hit.block_ids, hit.copy) == (7, [0], PartialBlock(src=1, num_tokens=3))
    grant = manager.allocate_slots(again, 1, hit)
    assert grant is not None
    assert (grant.block_ids, grant.copies) == ([2], (BlockCopy(src=1, dst=2, num_tokens=3),))
    assert manager.block_table("again") == [0, 2]


def test_the_copy_goes_into_the_first_of_the_new_blocks() -> None:
    manager = radix(8)
    serve(manager, ask("first", A))
    longer = ask("longer", [*A[:6], *range(8)])
    grant = manager.allocate_slots(longer, 8, manager.get_computed_blocks(longer))
    assert grant is not None
    assert grant.block_ids == [2, 3, 4]
    assert grant.copies == (BlockCopy(src=1, dst=2, num_tokens=2),)


def test_a_hit_without_its_copy_is_the_whole_blocks() -> None:
    manager = radix(8)
    serve(manager, ask("first", A))
    again = ask("again", [*A[:7], 1])
    hit = manager.get_computed_blocks(again).without_copy()
    assert (hit.num_tokens, hit.block_ids, hit.copy) == (4, [0], None)
    assert hit.without_copy() is hit
    grant = manager.allocate_slots(again, 4, hit)
    assert grant is not None
    assert grant.copies == ()
    assert 1 in manager.free_block_ids()


def test_keeping_the_source_costs_room_that_a_plain_hit_does_not() -> None:
    manager = radix(2)
    serve(manager, ask("first", A))
    again = ask("again", A)
    hit = manager.get_computed_blocks(again)
    assert manager.allocate_slots(again, 1, hit) is None  # a third block would be needed
    grant = manager.allocate_slots(again, 4, hit.without_copy())
    assert grant is not None
    assert grant.block_ids == [1]


@pytest.mark.parametrize("shared", range(1, 10))
def test_the_longest_equal_run_wins(shared: int) -> None:
    manager = radix(8)  # item 92
    serve(manager, ask("first", [1, 2, 3, 4, 5, 6, 7, 8, 9]))
    prompt = [*range(1, shared + 1), 99, 99]
    assert cached(manager, prompt) == shared


def test_the_best_of_many_siblings_is_found() -> None:
    # Against brute force; the tokens' bytes sort unlike the tokens themselves.
    dice = random.Random(0)
    letters = [0, 1, 255, 256, 65536, 2**24, 2**31 - 1, -1, -(2**31)]
    for _ in range(20):
        manager = radix(64)
        stored = [[dice.choice(letters) for _ in range(dice.randint(1, 4))] for _ in range(30)]
        for number, tokens in enumerate(stored):
            serve(manager, ask(f"r{number}", tokens))
        for _ in range(30):
            prompt = [dice.choice(letters) for _ in range(5)]
            assert cached(manager, prompt) == max(common(prompt[:-1], tokens) for tokens in stored)


def common(one: list[int], other: list[int]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def test_a_stored_token_is_enough() -> None:
    manager = radix(8)  # case 46, item 91
    serve(manager, ask("first", [7]))
    assert cached(manager, [7, 8, 9]) == 1
    assert cached(manager, [8, 7, 9]) == 0


@pytest.mark.parametrize(
    ("stored", "prompt", "found", "copied"),
    [
        (range(11), range(9), 8, 0),  # item 89: all but the last token, and two blocks hold those
        (range(11), [*range(9), 50], 9, 1),  # items 88, 90: a partly filled block is stored, and copied from
        (range(9), range(11), 9, 1),
        (range(9), range(5), 4, 0),  # item 91
        (range(9), range(1), 0, 0),
        ([1, 2, 3, 4], [1, 2, 3, 9], 3, 3),  # item 92
    ],
)
def test_whole_blocks_are_shared_and_the_rest_is_copied(
    stored: list[int], prompt: list[int], found: int, copied: int
) -> None:
    manager = radix(8)
    serve(manager, ask("first", stored))
    hit = manager.get_computed_blocks(ask("second", prompt))
    assert (hit.num_tokens, len(hit.block_ids)) == (found, found // 4)
    assert (hit.copy.num_tokens if hit.copy else 0) == copied


def test_a_tail_in_use_is_copied_from_once_it_is_left_and_never_lent() -> None:
    manager = radix(8)  # item 90: never shared in place
    serve(manager, ask("first", range(10)))
    second, third = ask("second", range(11)), ask("third", range(11))
    for request in (second, third):
        hit = admit(manager, request)
        assert (hit.num_tokens, len(hit.block_ids)) == (10, 2)
        manager.commit_step()
    tables = [manager.block_table(name) for name in ("second", "third")]
    assert tables[0][:2] == tables[1][:2]
    assert tables[0][2] != tables[1][2]


def test_a_copy_leaves_its_source_alone() -> None:
    manager = radix(8, block_size=16)  # item 93
    first, second = ask("first", range(13)), ask("second", [*range(12), 50, 51])
    run(manager, first)
    source = manager.block_table("first")
    manager.free(first)
    hit = admit(manager, second)
    assert hit.copy == PartialBlock(source[0], 12)
    assert not set(source) & set(manager.block_table("second"))
    manager.commit_step()
    decode(manager, second, range(60, 80))
    assert cached(manager, range(14)) == 13
    manager.free(second)
    assert cached(manager, range(14)) == 13
    assert cached(manager, [*range(12), 50, 51, *range(60, 81)]) == 34


@pytest.mark.parametrize("end", ["commit", "rollback", "free"])
def test_the_source_cannot_be_had_before_the_step_ends(end: str) -> None:
    manager = radix(4)
    serve(manager, ask("first", A))
    again = ask("again", [*A[:7], 1])
    hit = admit(manager, again)
    assert hit.copy is not None
    assert hit.copy.src not in manager.free_block_ids()
    assert manager.num_free_blocks == 1
    if end == "free":
        manager.free(again)
        assert hit.copy.src not in manager.free_block_ids()
        assert not manager.reset_prefix_cache()
    if end == "rollback":
        manager.rollback_step()
    else:
        manager.commit_step()
    assert hit.copy.src in manager.free_block_ids()
    assert cached(manager, [*A, 1]) == 8


def test_two_requests_of_one_step_copy_from_one_block() -> None:
    manager = radix(8)
    serve(manager, ask("first", A))
    hits = [admit(manager, ask(name, [*A[:6], number])) for number, name in enumerate(("second", "third"))]
    assert [hit.copy for hit in hits] == [PartialBlock(1, 2), PartialBlock(1, 2)]
    manager.commit_step()
    assert 1 in manager.free_block_ids()
    assert cached(manager, [*A, 1]) == 8


def test_of_a_long_run_only_the_block_to_copy_from_is_kept() -> None:
    manager = radix(10)
    serve(manager, ask("first", range(16)))
    assert admit(manager, ask("second", [*range(6), 90])).num_tokens == 6
    assert manager.block_table("second") == [0, 4]
    assert manager.free_block_ids() == [5, 6, 7, 8, 9, 3, 2]  # all but the table and block 1
    assert num_nodes(manager) == 3  # the shared block, the one to copy from, those that follow it
    manager.commit_step()
    assert manager.free_block_ids() == [5, 6, 7, 8, 9, 3, 2, 1]
    assert num_nodes(manager) == 2  # and what was cut for the step alone is whole again


def test_nothing_is_copied_from_a_block_that_this_step_writes() -> None:
    manager = radix(8)
    admit(manager, ask("first", A))
    assert cached(manager, [*A[:6], 1]) == 4
    assert cached(manager, A[:3]) == 0
    manager.commit_step()
    assert cached(manager, [*A[:6], 1]) == 6
    assert cached(manager, A[:3]) == 2


def test_a_committed_sibling_is_copied_from_beside_a_pending_one() -> None:
    manager = radix(8)
    serve(manager, ask("old", [1, 2, 9]))
    admit(manager, ask("new", [1, 2, 3, 4, 5]))  # pending, and nearer to the probe
    assert cached(manager, [1, 2, 3, 8]) == 2
    manager.commit_step()
    assert cached(manager, [1, 2, 3, 8]) == 3


# Tails


def test_a_tail_is_found_when_its_request_has_ended() -> None:
    manager = radix(8)
    first = ask("first", range(6))
    run(manager, first)
    assert cached(manager, range(8)) == 4
    manager.free(first)
    assert cached(manager, range(8)) == 6


@pytest.mark.parametrize("tail", [[1], [1, 2]])
@pytest.mark.parametrize("longer", [[1, 2, 3, 4], [1, 2, 3]])  # a full block, a longer tail
def test_a_longer_run_replaces_the_tail_that_it_covers(tail: list[int], longer: list[int]) -> None:
    manager = radix(8)
    short = ask("short", tail)
    run(manager, short)
    [block_id] = manager.block_table("short")
    manager.free(short)
    assert manager.free_block_ids()[-1] == block_id
    request = ask("longer", longer)
    side_by_side(manager, request)
    manager.free(request)
    assert manager.free_block_ids()[0] == block_id
    assert num_nodes(manager) == 1
    assert cached(manager, [1, 2, 3, 4, 5]) == len(longer)


def test_a_tail_that_is_copied_from_is_replaced_when_the_step_has_ended() -> None:
    manager = radix(8)
    serve(manager, ask("short", [1, 2]))
    longer = ask("longer", [1, 2, 3, 4, 5])
    assert admit(manager, longer).copy == PartialBlock(0, 2)
    assert num_nodes(manager) == 2
    manager.commit_step()
    assert num_nodes(manager) == 1
    assert manager.free_block_ids()[0] == 0


@pytest.mark.parametrize("tail", [[1], [1, 2], [1, 2, 3]])
def test_a_tail_that_the_tree_has_already_is_not_kept_twice(tail: list[int]) -> None:
    manager = radix(8)
    side_by_side(manager, ask("first", [1, 2, 3, 4]))
    serve(manager, ask("stub", [9, 9]))
    nodes = num_nodes(manager)
    second = ask("second", tail)
    side_by_side(manager, second)
    [block_id] = manager.block_table("second")
    manager.free(second)
    third = ask("third", [9, 9])
    side_by_side(manager, third)
    manager.free(third)
    assert num_nodes(manager) == nodes
    assert manager.free_block_ids()[0] == block_id


def test_tails_that_differ_stand_side_by_side() -> None:
    manager = radix(8)
    for number, tail in enumerate(([1, 2], [1, 3], [2])):
        serve(manager, ask(f"r{number}", [*A, *tail]))
    assert [cached(manager, [*A, *tail, 0]) for tail in ([1, 2], [1, 3], [2], [1], [3])] == [10, 10, 9, 9, 8]


# One path once


def test_the_first_of_two_equal_blocks_stays_in_the_tree() -> None:
    manager = radix(8)  # item 75
    first, second = ask("first", A), ask("second", A)
    side_by_side(manager, first, second)
    assert [manager.block_table(name) for name in ("first", "second")] == [[0, 1], [2, 3]]
    manager.free(second)
    assert set(manager.free_block_ids()[:2]) == {2, 3}
    assert manager.get_computed_blocks(ask("third", [*A, 1])).block_ids == [0, 1]


def test_what_follows_a_repeat_is_published_behind_what_it_repeats() -> None:
    manager = radix(8)
    first, second = ask("first", A), ask("second", [*A, 1, 2, 3, 4])
    side_by_side(manager, first, second)
    assert manager.block_table("second") == [2, 3, 4]
    assert manager.get_computed_blocks(ask("third", [*A, 1, 2, 3, 4, 5])).block_ids == [0, 1, 4]
    manager.free(first)
    assert manager.free_block_ids() == [5, 6, 7]  # blocks 0 and 1 bear the second's tail
    manager.free(second)
    assert manager.num_free_blocks == 8
    assert set(manager.free_block_ids()[:2]) == {2, 3}
    assert cached(manager, [*A, 1, 2, 3, 4, 5]) == 12


# Images and embeddings: a match ends before them or behind them

P, Q = "cafe" * 16, "beef" * 16


def showing(name: str, *tokens: int, image: str = P, start: int = 5, length: int = 6) -> CacheRequest:
    """Text, one image from ``start`` on, and text again: blocks of 4, the image in tokens 5 to 10."""
    return CacheRequest(name, tokens or range(14), media=[MediaSpan(image, start, length)])


def found(manager: CheckedManager, request: CacheRequest) -> int:
    return manager.get_computed_blocks(request).num_tokens


def test_another_image_ends_the_match_at_its_first_token() -> None:
    manager = radix(16)
    serve(manager, showing("first"))
    assert found(manager, showing("same")) == 13
    assert found(manager, showing("other", image=Q)) == 5
    assert found(manager, showing("moved", start=6)) == 5
    assert found(manager, showing("shorter", length=5)) == 5
    assert found(manager, ask("text", range(14))) == 5


@pytest.mark.parametrize("length", range(6, 15))
def test_the_last_token_may_be_in_an_image(length: int) -> None:
    manager = radix(16)
    serve(manager, showing("first"))
    request = CacheRequest("again", range(max(length, 11)), media=[MediaSpan(P, 5, max(6, length - 5))])
    readable = request.num_tokens - 1
    same_image = request.media[0].length == 6
    assert found(manager, request) == (readable if same_image and readable >= 11 else 5)


def test_a_prompt_that_ends_with_its_image_finds_the_text_before_it() -> None:
    manager = radix(16)
    serve(manager, showing("first", *range(11)))
    assert found(manager, showing("again", *range(11))) == 5
    assert found(manager, showing("longer", *range(12))) == 11


def test_an_image_that_was_computed_in_part_is_not_found_in_part() -> None:
    manager = radix(16)
    request = showing("first")
    for chunk, expected in ((7, 4), (2, 5), (3, 12)):  # whole blocks are found: 4, 8 and 12 tokens
        assert manager.allocate_slots(request, chunk) is not None
        manager.commit_step()
        manager.check()
        assert found(manager, showing("again")) == expected
    aborted = showing("second", image=Q)
    admit(manager, aborted, 4)
    manager.commit_step()
    manager.free(aborted)  # leaves a stub that ends inside the image
    assert found(manager, showing("again", image=Q)) == 5


def test_a_tail_shrunk_by_eviction_does_not_end_inside_an_image() -> None:
    for taken in range(5):
        manager = radix(5)
        serve(manager, showing("first"))  # four blocks, the image in the second and third
        if taken:
            serve(manager, ask("stranger", range(50, 50 + 4 * taken)))
        assert found(manager, showing("again")) == {0: 13, 1: 13, 2: 12, 3: 5, 4: 4}[taken]


def test_a_preempted_request_does_not_resume_inside_its_image() -> None:
    manager = radix(16)
    request = CacheRequest("r", range(14), media=[MediaSpan(P, 5, 6)], skip_reading=True)
    for num_computed in (8, 10):
        hit = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, num_computed - hit.num_tokens, hit) is not None
        manager.commit_step()
        manager.free(request)
        assert found(manager, request) == 5


def test_one_image_after_another_is_found_by_images() -> None:
    manager = radix(16)
    pages = [MediaSpan(P, 0, 3), MediaSpan(Q, 3, 3), MediaSpan(P, 6, 3)]
    serve(manager, CacheRequest("first", [9] * 10, media=pages))
    for number in range(4):
        media = [*pages[:number], *(MediaSpan("0" * 16, page.offset, 3) for page in pages[number:])]
        assert found(manager, CacheRequest("again", [9] * 10, media=media)) == 3 * number
    assert found(manager, CacheRequest("one long", [9] * 10, media=[MediaSpan(P, 0, 6)])) == 0


def test_a_request_shares_the_image_that_its_step_computes() -> None:
    manager = radix(16)
    first, second = showing("first"), showing("second", *range(13), 99)
    admit(manager, first)
    assert admit(manager, second).num_tokens == 12  # of whole blocks: nothing pending is copied
    manager.rollback_step()
    admit(manager, first)
    third = showing("third", *range(10), 98, 99)
    assert admit(manager, third).num_tokens == 4  # the image's last token stands in another block
    manager.commit_step()


def test_equal_embeddings_are_found_by_whole_blocks() -> None:
    manager = radix(16)  # case 15
    rows = bytes(range(20))

    def embedded(changed: int | None = None, count: int = 10) -> CacheRequest:
        data = bytearray(rows)
        if changed is not None:
            data[2 * changed] ^= 1
        return CacheRequest("r", [0] * (count + 2), prompt_embeds=PromptEmbeds(data, count))

    serve(manager, embedded())
    assert found(manager, embedded()) == 11
    assert [found(manager, embedded(row)) for row in range(10)] == [0] * 4 + [4] * 4 + [8] * 2
    assert found(manager, ask("tokens", [0] * 12)) == 0


def test_negative_ids_are_never_taken_for_an_image() -> None:
    for negative_first in (True, False):
        manager = radix(16)
        image = showing("image", start=4, length=4)
        tokens = [*range(4), -1, -1, -1, -1, *range(8, 14)]
        requests = [ask("negative", tokens), image]
        for request in requests if negative_first else reversed(requests):
            serve(manager, request)
        expected = [13, 4] if negative_first else [0, 13]  # whichever came first is cached
        assert [found(manager, request) for request in requests] == expected
        assert manager.reset_prefix_cache()
        serve(manager, image)
        assert found(manager, image) == 13


def test_what_an_index_cannot_compare_decodes_like_the_rest() -> None:
    manager = radix(16)
    serve(manager, showing("image"))
    request = ask("negative", [*range(20, 30), -1])
    run(manager, request)
    decode(manager, request, range(30, 40))
    manager.free(request)
    assert len(manager.free_block_ids()) == 16
    assert found(manager, ask("again", range(20, 30))) == 8  # the whole blocks before the negative one
