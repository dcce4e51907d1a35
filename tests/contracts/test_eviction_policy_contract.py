"""What every eviction policy owes, in both indexes, `check()` after every call.

Which of several prompts goes first is each policy's own (tests/cache/test_eviction.py); here is what all have
in common.  Numbers in comments are those of the conformance catalogue (items) and the collected cases.
"""

from __future__ import annotations

import random
from typing import Any, get_args

import pytest

from headstart.cache import CacheRequest, KVCacheManager, Namespace
from headstart.config import PolicyName, PrefixIndexName
from headstart.errors import CacheError, RequestError
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
)
from tests.recorded import live_at_the_door

A, B, C = (list(range(start, start + 8)) for start in (100, 200, 300))  # two full blocks each


@pytest.fixture(params=get_args(PrefixIndexName))
def index(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=get_args(PolicyName))
def make(request: pytest.FixtureRequest, index: str) -> Make:
    def build(num_blocks: int, block_size: int = 4, **options: Any) -> CheckedManager:
        return make_manager(num_blocks, block_size, **{"index": index, "policy": request.param} | options)

    return build


def lived(manager: KVCacheManager, seed: int, calls: int = 120) -> dict[str, CacheRequest]:
    """A random life, after which time stands still; returns the requests that hold blocks."""
    live = live_at_the_door(manager, random.Random(seed), calls)
    manager.begin_step(1000.0)
    return live


def take(manager: KVCacheManager, stranger: CacheRequest) -> int | None:
    """The block that the stranger gets next; None: there is no room."""
    size = manager.config.block_size
    stranger.tokens += CacheRequest("", [7] * size).tokens
    grant = manager.allocate_slots(stranger, size)
    if grant is None:
        return None
    manager.commit_step()
    return grant.block_ids[0]


# What is held, and what builds on what


def test_what_is_held_is_never_a_victim(make: Make) -> None:
    manager = make(6)  # item 78, case 51
    serve(manager, ask("old", A))
    held = ask("held", [*B, 1])
    run(manager, held)
    table = manager.block_table("held")
    assert not set(table) & set(manager.free_block_ids())
    stranger = ask("stranger", [])
    taken = [take(manager, stranger) for _ in range(4)]
    assert None not in taken[:3]
    assert taken[3] is None
    assert not set(table) & set(taken)
    assert manager.block_table("held") == table
    assert cached(manager, [*B, 2]) == 8


def test_a_prompt_goes_from_its_end(make: Make) -> None:
    manager = make(8)  # item 80, case 44
    serve(manager, ask("first", range(32)))
    stranger, found = ask("stranger", []), []
    for _ in range(8):
        assert take(manager, stranger) is not None
        found.append(cached(manager, range(33)))
    assert found == [28, 24, 20, 16, 12, 8, 4, 0]


def test_branches_go_before_what_they_share(make: Make) -> None:
    manager = make(9)  # law I7
    for name in "xyz":
        serve(manager, ask(name, [*A, *range(ord(name), ord(name) + 4)]))
    serve(manager, ask("again", [*A, *range(ord("x"), ord("x") + 4)]))
    stranger = ask("stranger", [])
    for _ in range(9):
        branches = [cached(manager, [*A, *range(ord(n), ord(n) + 4), 0]) > 8 for n in "xyz"]
        assert cached(manager, [*A, 0]) == 8 or not any(branches)
        assert take(manager, stranger) is not None
    assert cached(manager, [*A, 0]) == 0


@pytest.mark.parametrize("seed", range(4))
def test_what_is_listed_is_what_goes_in_this_order(make: Make, seed: int) -> None:
    manager = make(12, 3, evict_generated_first=seed % 2 == 0, ttl_seconds=0.3)
    lived(manager, seed)
    listed = manager.free_block_ids()
    assert len(listed) == manager.num_free_blocks
    stranger = CacheRequest("stranger", [], namespace=Namespace(salt="its own"))
    for number in range(len(listed)):
        assert manager.free_block_ids() == listed[number:]
        assert take(manager, stranger) == listed[number]
    assert take(manager, stranger) is None
    assert manager.num_free_blocks == 0


@pytest.mark.parametrize("seed", range(3))
def test_what_is_counted_as_free_can_be_had_at_once(make: Make, seed: int) -> None:
    manager = make(12, 3, ttl_seconds=0.3)
    for request in list(lived(manager, seed).values())[1:]:
        manager.free(request)
    free = manager.num_free_blocks
    assert manager.allocate_slots(ask("too much", range(500, 503 + 3 * free)), 3 * free + 3) is None
    assert manager.num_free_blocks == free
    grant = manager.allocate_slots(ask("all", range(500, 500 + 3 * free)), 3 * free)
    assert grant is not None
    assert len(grant.block_ids) == free


def test_unused_blocks_go_first(make: Make) -> None:
    manager = make(8)
    serve(manager, ask("first", A))
    serve(manager, ask("first again", [*A, 1]))
    assert set(manager.free_block_ids()[:5]) == set(range(8)) - set(manager.free_block_ids()[5:])
    stranger = ask("stranger", [])
    for _ in range(5):
        assert take(manager, stranger) is not None
        assert cached(manager, [*A, 2]) == 8
    assert take(manager, stranger) is not None
    for _ in range(2):
        assert take(manager, stranger) is not None
    assert cached(manager, [*A, 2]) == 0


# Determinism


def test_equal_lives_end_in_equal_states(make: Make) -> None:
    digests = []
    for seed in (1, 1, 2):  # law I9
        manager = make(12, 3)
        lived(manager, seed)
        digests.append(manager.state_digest())
    assert digests[0] == digests[1] != digests[2]


def test_the_state_tells_how_often_something_was_used(index: str) -> None:
    for policy in ("lfu", "lrfu"):
        digests = []
        for hits in (1, 2):
            manager = make_manager(8, index=index, policy=policy)
            serve(manager, ask("first", A))
            for number in range(hits):
                serve(manager, ask(f"again {number}", [*A, 1]))
            digests.append(manager.state_digest())
        assert digests[0] != digests[1]


def test_forgetting_everything_forgets_uses_too(make: Make) -> None:
    manager = make(6)
    for name in ("one", "two"):
        serve(manager, CacheRequest(name, [*A, 1], retention_priority=9))
    free = manager.free_block_ids()
    assert manager.pin(ask("pin", A), 5.0) is not None
    assert manager.reset_prefix_cache()
    assert sorted(manager.free_block_ids()) == sorted(free)
    assert manager.pins == ()
    serve(manager, ask("b", B))
    serve(manager, ask("a", A))
    assert cached(manager, [*A, 1]) == cached(manager, [*B, 1]) == 8


# Retention priority


def test_a_higher_priority_stays_longer(make: Make) -> None:
    manager = make(7)  # item 82
    serve(manager, CacheRequest("dear", A, retention_priority=5))
    serve(manager, ask("b", B))
    serve(manager, CacheRequest("c", C, retention_priority=1))
    serve(manager, ask("dear again", A))  # who wants it kept longest decides
    serve(manager, ask("b again", [*B, 1]))  # neither use nor recency comes before it
    stranger, found = ask("stranger", []), []
    while take(manager, stranger) is not None:
        found.append(tuple(cached(manager, [*tokens, 0]) // 4 for tokens in (A, B, C)))
    assert found == [(2, 2, 2), (2, 1, 2), (2, 0, 2), (2, 0, 1), (2, 0, 0), (1, 0, 0), (0, 0, 0)]


def test_priority_reaches_what_it_builds_on(make: Make) -> None:
    manager = make(6)  # item 83: by maximum
    serve(manager, ask("plain", [*A, 1, 2, 3, 4]))
    serve(manager, CacheRequest("dear", [*A, 5, 6, 7, 8], retention_priority=9))
    serve(manager, ask("other", B[:4]))
    serve(manager, ask("other again", [*B[:4], 1]))
    stranger = ask("stranger", [])
    for _ in range(3):
        assert take(manager, stranger) is not None
    assert cached(manager, [*A, 5, 6, 7, 8, 0]) == 12
    assert cached(manager, [*A, 1, 2, 3, 4, 0]) == 8
    assert cached(manager, [*B[:4], 0]) == 0


def test_priority_reaches_all_the_way_up(make: Make) -> None:
    manager = make(8)
    one, two = [*A, *B, 1, 2, 3, 4], [*A, *B, 5, 6, 7, 8]  # they part behind two blocks more than
    for name, tokens in (("one", one), ("two", two), ("three", [*A, *C[:4]])):  # the third
        serve(manager, ask(name, tokens))
    serve(manager, CacheRequest("dear", one, retention_priority=9))
    stranger = ask("stranger", [])
    for _ in range(3):
        assert take(manager, stranger) is not None
    assert cached(manager, [*one, 0]) == 20
    assert cached(manager, [*two, 0]) == 16


@pytest.mark.parametrize("wrong", [-1, 101, 1.5, "1", True, None])
def test_a_priority_has_a_range(wrong: Any) -> None:
    with pytest.raises(RequestError, match="retention_priority must be a whole number from 0") as caught:
        CacheRequest("r", [1], retention_priority=wrong)
    assert caught.value.param == "retention_priority"


# Answers before prompts


def answered(manager: CheckedManager, name: str, prompt: list[int], answer: list[int]) -> None:
    request = ask(name, prompt)
    run(manager, request)
    decode(manager, request, answer)
    manager.free(request)


def test_answers_go_before_older_prompts_if_asked(make: Make) -> None:
    manager = make(6, evict_generated_first=True)  # item 83
    serve(manager, ask("old", A))
    answered(manager, "chat", B[:5], list(range(20, 31)))  # two blocks of prompt, two of answer
    stranger, found = ask("stranger", []), []
    for _ in range(4):
        assert take(manager, stranger) is not None
        found.append(cached(manager, [*B[:5], *range(20, 31), 0]))
    assert found[:2] == [12, 8]
    assert cached(manager, [*A, 0]) + found[3] == 8


def test_an_answer_that_became_a_prompt_is_a_prompt(make: Make) -> None:
    manager = make(7, evict_generated_first=True)
    answered(manager, "chat", B, list(range(20, 28)))  # two blocks of prompt, two of answer
    serve(manager, ask("next turn", [*B, *range(20, 28), 1]))
    answered(manager, "other", C[:4], list(range(30, 34)))
    stranger = ask("stranger", [])
    while cached(manager, [*C[:4], *range(30, 34), 0]) > 4:
        assert take(manager, stranger) is not None
    assert cached(manager, [*C[:4], 0]) == 4
    assert cached(manager, [*B, *range(20, 28), 2]) == 16


def test_a_prompt_is_told_from_its_answer_when_both_are_computed_at_once(make: Make) -> None:
    manager = make(6, evict_generated_first=True)  # as after a preemption
    serve(manager, ask("old", A))
    tokens = [*B, *range(20, 28)]
    serve(manager, CacheRequest("back", tokens, num_prompt_tokens=8))
    stranger = ask("stranger", [])
    for _ in range(2):
        assert take(manager, stranger) is not None
    assert (cached(manager, [*A, 0]), cached(manager, [*tokens, 0])) == (8, 8)


@pytest.mark.parametrize("wrong", [-1, 3, 1.5, "1", True])
def test_a_prompt_is_no_longer_than_all_tokens(wrong: Any) -> None:
    with pytest.raises(RequestError, match="num_prompt_tokens must be a whole number from 0 to 2, not"):
        CacheRequest("r", [1, 2], num_prompt_tokens=wrong)


# Pins


def test_what_is_pinned_goes_last(make: Make) -> None:
    manager = make(8)
    serve(manager, ask("a", [*A, 1, 2, 3, 4]))
    pin = manager.pin(ask("keep", A), 60.0)
    assert pin is not None
    assert (pin.request_id, pin.num_blocks, pin.until) == ("keep", 2, 60.0)
    assert manager.pins == (pin,)
    for name, tokens in (("b", B), ("c", C)):
        serve(manager, CacheRequest(name, tokens, retention_priority=100))
        serve(manager, ask(f"{name} again", [*tokens, 1]))
    stranger = ask("stranger", [])
    for _ in range(6):
        assert cached(manager, [*A, 0]) == 8
        assert take(manager, stranger) is not None
    assert cached(manager, [*A, 0]) == 8
    assert manager.pins == (pin,)
    assert take(manager, stranger) is not None  # a pin is no reservation
    assert cached(manager, [*A, 0]) == 4
    assert take(manager, stranger) is not None
    assert take(manager, stranger) is None
    assert [(left.request_id, left.num_blocks) for left in manager.pins] == [("keep", 0)]


@pytest.mark.parametrize("end", ["time", "unpin"])
def test_a_pin_ends(make: Make, end: str) -> None:
    manager = make(4, ttl_seconds=1e6)
    manager.begin_step(1.0)
    serve(manager, ask("a", A))
    assert manager.pin(ask("keep", A), 2.0) is not None
    manager.begin_step(2.9)
    assert [pin.until for pin in manager.pins] == [3.0]
    if end == "time":
        manager.begin_step(3.0)
    else:
        assert manager.unpin("keep")
    assert manager.pins == ()
    assert not manager.unpin("keep")
    serve(manager, CacheRequest("b", B, retention_priority=1))
    stranger = ask("stranger", [])
    for _ in range(2):
        assert take(manager, stranger) is not None
    assert (cached(manager, [*A, 0]), cached(manager, [*B, 0])) == (0, 8)


def test_at_most_a_share_of_the_pool_is_pinned(make: Make) -> None:
    manager = make(8, max_pinned_share=0.4)  # three blocks
    serve(manager, ask("a", A))
    serve(manager, ask("b", B))
    assert manager.pin(ask("a", A), 1.0) is not None
    assert manager.pin(ask("same blocks", [*A, 1]), 1.0) is not None
    before = manager.state_digest()
    assert manager.pin(ask("too much", B), 1.0) is None
    assert manager.state_digest() == before
    third = manager.pin(ask("fits", B[:7]), 1.0)
    assert third is not None
    assert third.num_blocks == 1
    assert manager.unpin("a")
    assert manager.pin(ask("too much", B), 1.0) is None  # the other pin still holds both blocks
    assert manager.unpin("same blocks")
    assert manager.pin(ask("now it fits", B), 1.0) is not None


def test_a_second_pin_takes_the_place_of_the_first(make: Make) -> None:
    manager = make(8)
    serve(manager, ask("a", A))
    serve(manager, ask("b", B))
    assert manager.pin(ask("one", A), 1.0) is not None
    assert manager.pin(ask("one", B), 9.0) is not None
    assert [(pin.request_id, pin.num_blocks, pin.until) for pin in manager.pins] == [("one", 2, 9.0)]
    manager.begin_step(2.0)
    stranger = ask("stranger", [])
    for _ in range(6):
        assert take(manager, stranger) is not None
    assert (cached(manager, [*A, 0]), cached(manager, [*B, 0])) == (0, 8)


def test_a_pin_holds_its_own_namespace_and_what_is_written(make: Make) -> None:
    manager = make(8)
    serve(manager, ask("a", A))
    other = manager.pin(CacheRequest("salted", A, namespace=Namespace(salt="s")), 1.0)
    assert other is not None
    assert other.num_blocks == 0
    pending = ask("pending", [*A, *B])
    admit(manager, pending)
    pin = manager.pin(pending, 1.0)
    assert pin is not None
    assert pin.num_blocks == 2
    manager.commit_step()
    again = manager.pin(pending, 1.0)
    assert again is not None
    assert again.num_blocks == 4


def test_a_pinned_request_may_run_and_end(make: Make) -> None:
    manager = make(8)
    held = ask("held", A)
    run(manager, held)
    assert manager.pin(held, 5.0) is not None
    decode(manager, held, [1, 2])
    manager.free(held)
    assert cached(manager, [*A, 1, 2, 0]) == reach(manager, 10, 11)
    assert manager.unpin("held")
    assert manager.num_free_blocks == 8


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_pin_has_a_time(make: Make, seconds: float) -> None:
    manager = make(8)
    with pytest.raises(CacheError, match="must be pinned for a number of seconds above 0"):
        manager.pin(ask("a", A), seconds)
    assert manager.pins == ()
