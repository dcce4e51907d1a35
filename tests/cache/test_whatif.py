"""What other capacities would hit: estimates against exact replays, and what must not move them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import pytest

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager, Namespace
from headstart.cache.whatif import CAPACITIES, LruStack, WhatIf
from headstart.config import PrefixIndexName
from tests.cache.checked import admit, ask, decode, run, serve

INDEXES: list[PrefixIndexName] = ["radix", "hash"]


def conversations(count: int, seed: int = 0) -> list[list[int]]:
    """Prompts of sessions that go on (each turn repeats what was said) behind a few system prompts.

    The last token of each is new, as the last partly filled block of a prompt would be.
    """
    draw = random.Random(seed)
    token = iter(range(1, 10**9)).__next__
    systems = [[token() for _ in range(draw.randrange(2, 12))] for _ in range(6)]
    sessions: list[list[int]] = []
    prompts = []
    for _ in range(count):
        if not sessions or draw.random() < 0.3:
            sessions.append(list(systems[min(draw.randrange(6), draw.randrange(6))]))
        talk = sessions[-1 - min(int(draw.expovariate(1 / 25)), len(sessions) - 1)]
        if len(talk) < 60:
            talk += [token() for _ in range(draw.randrange(1, 9))]
        prompts.append([*talk, token()])
    return prompts


def replay(
    prompts: Iterable[Sequence[int]], num_blocks: int, what_if: WhatIf | None = None, **options: Any
) -> KVCacheManager:
    """One request after the other; each token is a block, so nothing is lost to alignment."""
    manager = KVCacheManager(CacheConfig(num_blocks, block_size=1, **options), what_if=what_if)
    for number, prompt in enumerate(prompts):
        serve(manager, ask(str(number), prompt))
    return manager


def hit_rate(manager: KVCacheManager) -> float:
    return manager.stats.hits / manager.stats.queries


def watched(num_blocks: int, block_size: int = 4, **options: Any) -> tuple[KVCacheManager, WhatIf]:
    what_if = WhatIf(num_blocks, block_size, window=None)
    return KVCacheManager(CacheConfig(num_blocks, block_size, **options), what_if=what_if), what_if


# Against exact replays

LONG = conversations(1000)


@cache
def long_hit_rates() -> list[float]:
    """The exact rates of `LONG` at multiples of 400 blocks."""
    return [hit_rate(replay(LONG, int(times * 400))) for times in CAPACITIES]


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("num_blocks", [140, 301])
def test_estimates_are_exact_while_every_block_is_in_the_sample(
    index: PrefixIndexName, num_blocks: int
) -> None:
    prompts = conversations(300)
    what_if = WhatIf(num_blocks, 1, window=None)
    replay(prompts, num_blocks, what_if, index=index)
    exact = [hit_rate(replay(prompts, int(times * num_blocks), index=index)) for times in CAPACITIES]
    assert exact == sorted(exact)
    assert exact[-1] - exact[0] > 0.05
    assert list(what_if.rates().values()) == pytest.approx(exact)


@pytest.mark.parametrize("seed", range(3))
def test_a_sample_is_enough(seed: int) -> None:
    prompts, num_blocks = LONG, 400
    what_if = WhatIf(num_blocks, 1, window=None, sample_size=400, seed=seed)  # one block of four
    replay(prompts, num_blocks, what_if)
    exact = long_hit_rates()
    errors = [abs(guess - truth) for guess, truth in zip(what_if.rates().values(), exact, strict=True)]
    assert max(errors) < 0.03
    assert sum(errors) / 3 < 0.015  # at 1x it is no estimate


@pytest.mark.parametrize("index", INDEXES)
def test_watching_decides_nothing(index: PrefixIndexName) -> None:
    prompts = conversations(200)
    plain = replay(prompts, 150, index=index)
    assert replay(prompts, 150, WhatIf(150, 1), index=index).state_digest() == plain.state_digest()


def test_memory_does_not_grow_with_the_trace() -> None:
    what_if = WhatIf(200, 1, sample_size=100)
    manager = replay(conversations(300), 200, what_if)
    assert sum(len(segment) for segment in what_if._stack._segments) <= 100
    assert not what_if._running
    assert not what_if._fresh
    cached = 200 - len(manager._index._free)  # type: ignore[attr-defined]  # radix
    assert sum(nearest is not None for nearest in what_if._nearest) <= cached


# What counts


def test_a_prompt_of_the_same_step_hits_at_every_capacity() -> None:
    manager, what_if = watched(40)
    first, second = ask("a", range(17)), ask("b", [*range(16), 99])
    admit(manager, first)
    admit(manager, second)
    manager.commit_step()
    assert list(what_if.rates().values()) == [16 / 34] * 4


@pytest.mark.parametrize("index", INDEXES)
def test_the_lru_order_is_that_of_the_release(index: PrefixIndexName) -> None:
    manager, what_if = watched(8, block_size=1, index=index)
    slow, quick = ask("slow", [1, 2]), ask("quick", [3, 4])
    run(manager, slow)
    serve(manager, quick)
    serve(manager, ask("other", [5]))
    manager.free(slow)
    serve(manager, ask("again", [3, 9]))  # behind 1, 2 and 5: the fourth of half the capacity, 4 blocks
    assert what_if.rates()["0.5x"] == 1 / 7
    serve(manager, ask("later", [5, 8]))  # 3 and 9 came in between: the fifth
    assert what_if.rates() == {"0.5x": 1 / 9, "1x": 2 / 9, "2x": 2 / 9, "4x": 2 / 9}


@pytest.mark.parametrize("index", INDEXES)
def test_what_was_evicted_counts_for_a_larger_pool(index: PrefixIndexName) -> None:
    manager, what_if = watched(4, index=index)
    serve(manager, ask("a", range(16)))
    serve(manager, ask("b", range(100, 116)))
    hit = serve(manager, ask("a again", range(16)))
    assert hit.num_tokens == 0
    assert what_if.rates() == {
        "0.5x": 0,
        "1x": 0,
        "2x": 12 / 48,
        "4x": 12 / 48,
    }  # the last token's block never


def test_chunks_are_counted_as_the_prompt_they_are_of_and_answers_are_not() -> None:
    manager, what_if = watched(4)
    for name, stranger in (("a", 200), ("b", 300)):
        talk = ask(name, range(10))
        admit(manager, talk, 4)
        manager.commit_step()
        for _ in range(2):
            assert manager.allocate_slots(talk, 3) is not None
            manager.commit_step()
        decode(manager, talk, [10, 11, 12, 13])  # fills a block that both have in common
        manager.free(talk)
        serve(manager, ask(f"stranger {name}", range(stranger, stranger + 16)))
    assert what_if.rates()["2x"] == 8 / 52


@pytest.mark.parametrize("index", INDEXES)
def test_only_first_admissions_that_committed_are_counted(index: PrefixIndexName) -> None:
    manager, what_if = watched(40, index=index)
    prompt = ask("a", range(9))
    admit(manager, prompt)
    manager.rollback_step()
    assert what_if.rates()["1x"] == 0
    run(manager, prompt)
    manager.free(prompt)  # preempted
    run(manager, prompt)
    manager.free(prompt)
    serve(manager, CacheRequest("b", range(9), skip_reading=True))
    assert set(what_if.rates().values()) == {0.0}
    serve(manager, ask("c", range(9)))
    assert set(what_if.rates().values()) == {hit_rate(manager)}


def test_salts_share_nothing_at_any_capacity() -> None:
    manager, what_if = watched(9)
    for salt in ("one", "two", None):
        serve(manager, ask(f"{salt}", range(33), Namespace(salt=salt)))
    assert set(what_if.rates().values()) == {0.0}


def test_tokens_of_a_partial_hit_are_in_all_estimates() -> None:
    manager, what_if = watched(40)
    serve(manager, ask("a", range(12)))
    serve(manager, ask("b", range(12)))
    assert set(what_if.rates().values()) == {11 / 24}


def test_a_copy_carries_its_label_on() -> None:
    manager, what_if = watched(6, index="hash")
    twins = [ask(name, range(8)) for name in "ab"]
    for twin in twins:
        assert manager.allocate_slots(twin, 8) is not None  # without a look at the cache
        manager.commit_step()
    manager.free(twins[0])
    serve(manager, ask("stranger", range(100, 116)))  # takes the four blocks that nobody holds
    manager.free(twins[1])
    serve(manager, ask("c", [*range(8), 99]))
    assert what_if.rates()["2x"] == what_if.rates()["1x"] == 8 / (16 + 16 + 9)


def test_a_reset_empties_every_capacity() -> None:
    manager, what_if = watched(8)
    serve(manager, ask("a", range(32)))
    assert manager.reset_prefix_cache()
    serve(manager, ask("b", range(32)))
    assert set(what_if.rates().values()) == {0.0}


def test_a_fork_is_not_counted_and_leaves_nothing_behind() -> None:
    manager, what_if = watched(20)
    leader, child = ask("a", range(9)), ask("a#1", range(9))
    run(manager, leader)
    manager.fork(leader, child)
    decode(manager, child, range(50, 56))
    manager.free(child)
    manager.free(leader)
    assert set(what_if.rates().values()) == {0.0}
    assert not what_if._running


def test_the_rates_are_those_of_the_window() -> None:
    what_if = WhatIf(100, 1, window=10)
    manager = replay([[number] * 2 for number in range(100, 160)], 100, what_if)
    assert what_if.rates()["4x"] == 0
    for number in range(100):
        serve(manager, ask(f"again {number}", [1, 2, 3, 4]))
    assert all(rate == pytest.approx(0.75, abs=0.001) for rate in what_if.rates().values())


def test_nobody_watches_unless_asked_to() -> None:
    assert KVCacheManager(CacheConfig(4)).hit_rate_estimates == {}
    manager, what_if = watched(4)
    assert manager.hit_rate_estimates == what_if.rates() == {"0.5x": 0, "1x": 0, "2x": 0, "4x": 0}


@pytest.mark.parametrize("bounds", [(1, 2, 4, 8), (0, 1, 2, 4), (3, 3, 9)])
def test_the_stack_tells_ranks_apart_at_its_bounds(bounds: tuple[int, ...]) -> None:
    draw, stack, order = random.Random(7), LruStack(bounds), []
    for _ in range(400):
        label = draw.randrange(14)
        rank = order.index(label) + 1 if label in order else 99
        assert stack.segment_of(label) == sum(rank > bound for bound in bounds)
        stack.touch([label])
        order = [label, *(other for other in order if other != label)][: bounds[-1]]
