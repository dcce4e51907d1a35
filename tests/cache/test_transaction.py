"""A step is a transaction: what is pending, what is taken back, and what rests on it.  Both indexes."""

from __future__ import annotations

import random

import pytest

from headstart.cache import CacheRequest, Namespace
from headstart.errors import CacheError
from tests.cache.checked import (
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


def test_a_step_ends_before_the_next_begins(make: Make) -> None:
    manager = make(8)
    manager.begin_step(0.0)
    manager.begin_step(1.0)  # nothing was granted: nothing to end
    admit(manager, ask("first", A))
    with pytest.raises(CacheError, match="neither committed nor rolled back"):
        manager.begin_step(2.0)
    manager.commit_step()
    manager.begin_step(2.0)
    assert manager.rollback_step() == ()
    manager.begin_step(3.0)
    manager.commit_step()
    assert cached(manager, [*A, 1]) == 8


def test_a_rolled_back_step_leaves_no_trace_of_whom_it_admitted(make: Make) -> None:
    manager = make(8)  # case 28
    before = state(manager)
    for name, tokens in (("first", A), ("second", range(5)), ("third", [*A, 1])):
        admit(manager, ask(name, tokens))
    assert manager.rollback_step() == ("first", "second", "third")
    assert state(manager) == before
    assert cached(manager, [*A, 1]) == cached(manager, range(6)) == 0
    for name in ("first", "second", "third"):
        with pytest.raises(CacheError, match="holds no blocks"):
            manager.block_table(name)


def test_a_rolled_back_step_leaves_running_requests_as_they_were(make: Make) -> None:
    manager = make(8)
    first, second = ask("first", range(7)), ask("second", A)
    run(manager, first)
    before = state(manager, first)
    first.append(7)
    assert manager.allocate_slots(first, 1) is not None  # fills a block
    first.append(8)
    assert manager.allocate_slots(first, 1) is not None  # takes one
    admit(manager, second)
    assert manager.rollback_step() == ("first", "second")
    assert state(manager, first) == before
    assert cached(manager, range(9)) == 4

    assert manager.allocate_slots(first, 2) is not None  # the same tokens, once more
    manager.commit_step()
    assert cached(manager, range(9)) == 8
    manager.free(first)
    assert cached(manager, range(20)) == reach(manager, 9, 20)


def test_a_step_that_is_tried_again_gets_the_same_blocks(make: Make) -> None:
    manager = make(8)
    tables = []
    for _ in range(2):
        requests = [ask("first", A), ask("second", range(10)), ask("third", [1])]
        for request in requests:
            admit(manager, request)
        tables.append([manager.block_table(request.request_id) for request in requests])
        manager.rollback_step()
    assert tables[0] == tables[1]


def test_what_was_evicted_for_a_rolled_back_step_stays_lost(make: Make) -> None:
    manager = make(2)
    serve(manager, ask("old", A))
    admit(manager, ask("new", [1]))
    manager.rollback_step()
    assert cached(manager, [*A, 1]) == 4
    assert manager.num_free_blocks == 2


def test_a_hit_is_given_back_by_a_rollback(make: Make) -> None:
    manager = make(8)
    holder = ask("holder", [*A, 1])
    run(manager, holder)
    before = state(manager, holder)
    assert admit(manager, ask("second", [*A, 2])).num_tokens == 8
    manager.rollback_step()
    assert state(manager, holder) == before
    assert cached(manager, [*A, 2]) == 8


def test_a_request_freed_before_its_step_committed_leaves_nothing_behind(make: Make) -> None:
    manager = make(8)  # cases 28, 53, 54
    before = state(manager)
    first = ask("first", A)
    admit(manager, first)
    assert manager.free(first) == ()
    assert state(manager) == before
    assert cached(manager, [*A, 1]) == 0
    manager.commit_step()
    assert cached(manager, [*A, 1]) == 0


def test_a_request_can_come_back_in_the_step_in_which_it_was_freed(make: Make) -> None:
    manager = make(8)
    first = ask("first", A)
    admit(manager, first)
    manager.free(first)
    admit(manager, first)
    manager.commit_step()
    assert cached(manager, [*A, 1]) == 8


def test_whoever_shares_withdrawn_blocks_is_withdrawn_too(make: Make) -> None:
    manager = make(16)
    first, other = ask("first", A), ask("other", range(4))
    second = ask("second", [*A, 1, 2, 3, 4, 5])  # rests on first
    third = ask("third", [*A, 1, 2, 3, 4, 6])  # rests on second, and so on first
    for request, hit in ((first, 0), (other, 0), (second, 8), (third, 12)):
        assert admit(manager, request).num_tokens == hit
    assert sorted(manager.free(first)) == ["second", "third"]
    assert manager.num_free_blocks == 16 - 1
    assert manager.stats.requests == 1
    manager.commit_step()
    assert cached(manager, [*A, 1]) == 0
    assert cached(manager, range(5)) == 4  # of the one that shared nothing
    for request in (second, third):
        with pytest.raises(CacheError, match="holds no blocks"):
            manager.free(request)


def test_those_withdrawn_are_named_in_the_order_of_their_grants(make: Make) -> None:
    manager = make(16)  # I9: no set order decides anything
    first = ask("first", A)
    admit(manager, first)
    names = [f"sharer {number}" for number in range(8)]
    for number, name in enumerate(names):
        admit(manager, ask(name, [*A, number]))
    assert manager.free(first) == tuple(names)


def test_sharing_is_followed_through_whatever_the_order_of_grants() -> None:
    manager = make_manager(12, block_size=2)  # radix: several grants in a step, resting on each other
    first, second, third = (ask(name, [1, 2, 3, 4]) for name in ("first", "second", "third"))
    for request, count in ((first, 1), (second, 2), (third, 4), (second, 2), (first, 1)):
        assert manager.allocate_slots(request, count) is not None
    # second repeats a block of third, which repeats a block of second, which first repeats
    assert manager.free(third) == ("second", "first")
    assert manager.num_free_blocks == 12


def test_freeing_the_one_in_the_middle_leaves_the_first(make: Make) -> None:
    manager = make(16)
    first, second, third = ask("first", A), ask("second", [*A, *range(5)]), ask("third", [*A, *range(4), 9])
    for request in (first, second, third):
        admit(manager, request)
    assert manager.free(second) == ("third",)
    manager.commit_step()
    assert len(manager.block_table("first")) == 2
    assert cached(manager, [*A, *range(5)]) == 8


def test_whoever_shares_committed_blocks_stays(make: Make) -> None:
    manager = make(16)
    first = ask("first", A)
    run(manager, first)
    first.append(1)
    assert manager.allocate_slots(first, 1) is not None
    second = ask("second", [*A, 2])
    assert admit(manager, second).num_tokens == 8
    assert manager.free(first) == ()
    manager.commit_step()
    assert len(manager.block_table("second")) == 3
    assert cached(manager, [*A, 1]) == 8


def test_a_running_request_that_is_freed_keeps_what_was_committed(make: Make) -> None:
    manager = make(16)
    first = ask("first", range(7))
    run(manager, first)
    first.append(7)
    assert manager.allocate_slots(first, 1) is not None  # its second block is full, and pending
    second = ask("second", [*range(8), 50])
    assert admit(manager, second).num_tokens == 8
    assert manager.free(first) == ("second",)
    manager.commit_step()
    assert manager.num_free_blocks == 16
    assert cached(manager, range(20)) == reach(manager, 7, 20)


def test_only_the_last_grants_of_a_running_sharer_are_withdrawn() -> None:
    manager = make_manager(16)  # radix: a repeat rests on the block that it repeats
    first, second = ask("first", range(8)), ask("second", range(8))
    assert manager.allocate_slots(second, 3) is not None
    manager.commit_step()
    before = state(manager, second)
    assert manager.allocate_slots(first, 8) is not None
    assert manager.allocate_slots(second, 5) is not None
    assert manager.free(first) == ("second",)
    assert state(manager, second)[0] == before[0]
    assert state(manager, second)[3] == before[3]
    manager.commit_step()
    assert cached(manager, range(9)) == 0
    assert manager.allocate_slots(second, 5) is not None
    manager.commit_step()
    assert cached(manager, range(9)) == 8


PHASES = [
    "granted",
    "first chunk",
    "second chunk granted",
    "prefilled",
    "decoding",
    "decode granted",
    "shared",
]


@pytest.mark.parametrize("phase", PHASES)
def test_an_abort_in_any_phase_gives_everything_back(make: Make, phase: str) -> None:
    manager = make(8)  # case 53
    request = ask("request", range(10))
    other = ask("other", [*range(8), 90])
    reached = PHASES.index(phase)
    assert manager.allocate_slots(request, 4) is not None
    if reached >= 1:
        manager.commit_step()
    if reached >= 2:
        assert manager.allocate_slots(request, 6) is not None
    if reached >= 3:
        manager.commit_step()
    if reached >= 4:
        decode(manager, request, [10, 11])
    if reached >= 5:
        request.append(12)
        assert manager.allocate_slots(request, 1) is not None
    if reached >= 6:
        assert admit(manager, other).num_tokens == 8
    manager.free(request)
    with pytest.raises(CacheError, match="holds no blocks"):
        manager.free(request)
    manager.commit_step()
    if phase == "shared":
        manager.free(other)
    assert manager.num_free_blocks == 8
    assert manager.usage == 0.0
    assert manager.reset_prefix_cache()
    assert cached(manager, range(11)) == 0


def test_a_thousand_random_aborts_leave_nothing_behind(make: Make) -> None:
    manager = make(12)  # cases 52, 53; item 51
    dice = random.Random(1)
    live: dict[str, CacheRequest] = {}
    aborts = 0
    while aborts < 1000:
        turn = dice.random()
        if turn < 0.5:
            name = f"r{aborts}-{len(live)}-{dice.random()}"
            tokens = [dice.randint(0, 1) for _ in range(dice.randint(1, 20))]
            request = ask(name, tokens, Namespace(salt=dice.choice([None, "s"])))
            hit = manager.get_computed_blocks(request)
            count = dice.randint(1, request.num_tokens - hit.num_tokens)
            if manager.allocate_slots(request, count, hit) is not None:
                live[name] = request
        elif turn < 0.6:
            end_step(manager, live, commit=dice.random() < 0.8)
        elif live:
            withdrawn = manager.free(live.pop(dice.choice(list(live))))
            assert all(name in live for name in withdrawn)
            forget_withdrawn(manager, live)
            aborts += 1
    end_step(manager, live, commit=True)
    for request in live.values():
        manager.free(request)
    assert manager.num_free_blocks == 12
    assert sorted(manager.free_block_ids()) == list(range(12))


def end_step(manager: CheckedManager, live: dict[str, CacheRequest], *, commit: bool) -> None:
    if commit:
        manager.commit_step()
    else:
        manager.rollback_step()
        forget_withdrawn(manager, live)


def forget_withdrawn(manager: CheckedManager, live: dict[str, CacheRequest]) -> None:
    for name in [name for name in live if name not in manager._holdings]:
        del live[name]
