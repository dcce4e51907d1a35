from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.cache.reasons import MissReason
from headstart.config import PolicyName
from headstart.lab.replay.chains import Chains, computed_output, symbols_of
from headstart.lab.replay.optimal import replay_optimal
from headstart.lab.replay.outcome import OPTIMAL, Outcome, Setting
from headstart.lab.replay.replay import replay
from headstart.lab.traces.trace import Trace
from tests.small_traces import by_ids, by_tokens, tree_prompts


def optimum(trace: Trace, block_size: int, capacity: int | None) -> Outcome:
    return replay_optimal(trace, Setting(OPTIMAL, "hash", block_size, capacity))


def hit_blocks(outcome: Outcome) -> int:
    return sum(one.num_hit_tokens for one in outcome.served) // outcome.setting.block_size


def best_of_all(trace: Trace, block_size: int, capacity: int) -> int:
    """The most blocks that any choice of what to evict can hit: every choice is tried."""
    chains = Chains.of(trace, symbols_of(block_size, trace))

    @cache
    def best(number: int, kept: frozenset[int]) -> int:
        if number == len(trace.requests):
            return 0
        request, chain = trace.requests[number], chains.requests[number]
        num_symbols = request.num_symbols + len(computed_output(request)) // 4
        needed = -(-num_symbols // chains.block_symbols)
        if needed > capacity:
            return best(number + 1, kept)
        reachable = chains.num_reachable(request)
        hits = next((at for at in range(reachable) if chain[at] not in kept), reachable)
        others = kept - set(chain[:hits])
        most = min(len(others), capacity - needed)
        choices = (frozenset(c) for size in range(most + 1) for c in combinations(sorted(others), size))
        return hits + max(best(number + 1, choice | set(chain)) for choice in choices)

    return best(0, frozenset())


small_prompts = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=1, max_size=7)


@settings(max_examples=100)
@given(small_prompts, st.integers(2, 6))
def test_no_choice_of_evictions_hits_more(prompts: list[list[int]], capacity: int) -> None:
    trace = by_ids(tree_prompts(prompts))
    assert hit_blocks(optimum(trace, 512, capacity)) == best_of_all(trace, 512, capacity)


@settings(max_examples=80)
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=7), min_size=1, max_size=6),
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
    st.integers(5, 6),
)
def test_nor_with_blocks_of_two_and_answers(
    prompts: list[list[int]], answers: list[int], capacity: int
) -> None:
    outputs = [[0, 1, 0][:size] for size in answers[: len(prompts)]]
    trace = by_tokens(prompts, outputs)
    assert hit_blocks(optimum(trace, 2, capacity)) == best_of_all(trace, 2, capacity)


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=40),
    st.integers(6, 12),
    st.sampled_from(get_args(PolicyName)),
    st.sampled_from(["hash", "radix"]),
)
def test_no_policy_hits_more_blocks(
    prompts: list[list[int]], capacity: int, policy: str, index: str
) -> None:
    trace = by_ids(tree_prompts(prompts))
    online = replay(trace, Setting(policy, index, 512, capacity))
    assert optimum(trace, 512, capacity).rates.block_hit_rate >= online.rates.block_hit_rate


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=30),
    st.integers(6, 10),
    st.sampled_from(get_args(PolicyName)),
)
def test_no_policy_of_whole_blocks_hits_more_tokens(
    prompts: list[list[int]], capacity: int, policy: str
) -> None:
    trace = by_tokens(prompts, [[1, 0, 1]] * len(prompts))
    online = replay(trace, Setting(policy, "hash", 2, capacity))
    assert optimum(trace, 2, capacity).rates.token_hit_rate >= online.rates.token_hit_rate


def test_it_keeps_what_is_used_next() -> None:
    # LRU has evicted 1 when it comes again; the optimum lets 3 go, which never does.
    trace = by_ids([[1, 10], [3, 30], [2, 20], [1, 11]])
    lru = replay(trace, Setting("lru", "hash", 512, 4))
    best = optimum(trace, 512, 4)
    assert (hit_blocks(lru), hit_blocks(best)) == (0, 1)
    assert best.served[3].misses == {MissReason.LAST_TOKEN: 512}
    assert lru.served[3].misses == {MissReason.LAST_TOKEN: 512, MissReason.EVICTED: 512}


def test_the_tail_goes_first() -> None:
    trace = by_ids([[1, 2, 3, 4], [5, 6], [1, 2, 3, 4]])
    best = optimum(trace, 512, 5)
    assert best.served[2].num_hit_tokens == 3 * 512
    assert best.num_evicted_blocks == 2  # 4, which nobody can hit; then 6


@pytest.mark.parametrize("warmup", [0, 2])
def test_warmup_does_not_count(warmup: int) -> None:
    trace = by_ids([[1, 2], [1, 3], [1, 4]])
    best = replay_optimal(trace, Setting(OPTIMAL, "hash", 512, 10), warmup=warmup)
    assert [one.number for one in best.served] == [0, 1, 2][warmup:]
    assert best.rates.num_hit_tokens == (2 if warmup == 0 else 1) * 512


def test_what_never_fits_is_refused() -> None:
    best = optimum(by_ids([[1, 2], [1, 2, 3], [1, 2]]), 512, 2)
    assert best.refused == 1
    assert best.served[1].misses == {MissReason.SKIPPED: 3 * 512}
    assert best.served[2].num_hit_tokens == 512


def test_without_bounds_nothing_is_evicted() -> None:
    best = optimum(by_ids([[1, 2, 3], [4, 5], [1, 2, 3]]), 512, None)
    assert (best.num_evicted_blocks, hit_blocks(best)) == (0, 2)
