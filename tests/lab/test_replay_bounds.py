from __future__ import annotations

from dataclasses import replace

import pytest

from headstart.cache import Namespace
from headstart.errors import ConfigError
from headstart.lab.replay.bounds import bounds_of
from headstart.lab.replay.chains import Chains
from headstart.lab.replay.outcome import Setting
from headstart.lab.replay.replay import replay
from tests.small_traces import by_ids, by_tokens


def test_a_block_is_what_it_holds_and_all_before_it() -> None:
    chains = Chains.of(by_tokens([[1, 2, 9, 9], [3, 4, 9, 9], [1, 2, 9, 9, 5]]), 2)
    assert [list(chain) for chain in chains.requests] == [[0, 1], [2, 3], [0, 1]]
    assert chains.num_unique == 4


def test_namespaces_share_no_block() -> None:
    trace = by_tokens([[1, 2, 3, 4]] * 3)
    trace.requests[1] = replace(trace.requests[1], namespace=Namespace(salt="a"))
    bounds = bounds_of(trace, 2)
    assert (bounds.num_blocks, bounds.num_unique_blocks) == (6, 4)
    assert bounds.unbounded.num_hit_tokens == 2  # the third: the last block holds the last token


def test_bounds_of_three_prompts() -> None:
    trace = by_tokens([range(10), range(10), [*range(6), 50, 51, 52, 53]])
    bounds = bounds_of(trace, 4)
    assert (bounds.num_blocks, bounds.num_unique_blocks) == (6, 3)
    assert bounds.reuse_bound == 0.5
    assert bounds.pressure(6) == 0.5
    assert bounds.unbounded.token_hit_rate == (0 + 8 + 4) / 30
    assert bounds.unbounded.request_full_hit_rate == 1 / 3
    assert bounds.unbounded.request_any_hit_rate == 2 / 3
    assert bounds.unbounded.block_hit_rate == 0.5
    assert bounds_of(trace, 4, warmup=1).unbounded.token_hit_rate == 12 / 20


def test_the_last_id_of_a_prompt_is_a_block_only_if_it_is_full() -> None:
    trace = by_ids([[1, 2], [1, 3]], lengths=[1024, 600])
    bounds = bounds_of(trace, 512)
    assert (bounds.num_blocks, bounds.num_unique_blocks) == (3, 2)


def test_a_block_that_an_answer_had_first_need_not_be_computed() -> None:
    trace = by_tokens([[1, 2], [1, 2, 3, 4, 5]], outputs=[[3, 4, 5], [6]])
    bounds = bounds_of(trace, 2)
    assert (bounds.num_blocks, bounds.num_unique_blocks) == (3, 1)
    assert bounds.unbounded.num_hit_tokens == 4
    assert bounds.unbounded.block_hit_rate == bounds.reuse_bound == pytest.approx(2 / 3)


def test_the_unbounded_cache_is_that_of_a_replay() -> None:
    trace = by_tokens([[number % 3, *range(number % 5, 40)] for number in range(30)])
    for size in (1, 3, 16):
        found = replay(trace, Setting("lru", "hash", size, None))
        assert found.rates == bounds_of(trace, size).unbounded
        assert found.num_evicted_blocks == 0


def test_hash_ids_are_seen_in_multiples_of_their_blocks_alone() -> None:
    with pytest.raises(ConfigError, match="stand for 512 tokens each can be replayed with multiples"):
        bounds_of(by_ids([[1, 2]]), 256)
