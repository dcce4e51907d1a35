from __future__ import annotations

from dataclasses import replace

import pytest

from headstart.cache.reasons import MissReason
from headstart.errors import ConfigError
from headstart.lab.replay.outcome import Outcome, Setting
from headstart.lab.replay.replay import replay
from tests.small_traces import by_ids, by_tokens

A, B = [1, 2, 3], [4, 5, 6]


def hits(outcome: Outcome) -> list[int]:
    return [one.num_hit_tokens for one in outcome.served]


@pytest.mark.parametrize(
    ("index", "hit", "reachable", "misses"),
    [
        ("hash", 4, 4, {MissReason.LAST_TOKEN: 1, MissReason.UNALIGNED: 3}),
        ("radix", 7, 7, {MissReason.LAST_TOKEN: 1}),
    ],
)
def test_eight_tokens_sent_twice(
    index: str, hit: int, reachable: int, misses: dict[MissReason, int]
) -> None:
    outcome = replay(by_tokens([range(8), range(8)]), Setting("lru", index, 4, 10))
    again = outcome.served[1]
    assert (again.num_hit_tokens, again.num_reachable_tokens) == (hit, reachable)
    assert again.misses == misses
    assert again.is_full_hit
    assert outcome.rates.request_full_hit_rate == 0.5
    assert outcome.rates.token_hit_rate == hit / 16
    assert outcome.rates.block_hit_rate == 0.25


@pytest.mark.parametrize("index", ["hash", "radix"])
@pytest.mark.parametrize(("capacity", "blocks"), [(3, 0), (4, 1), (5, 2), (6, 2), (None, 2)])
def test_the_tail_is_evicted_first(index: str, capacity: int | None, blocks: int) -> None:
    outcome = replay(by_ids([A, B, A]), Setting("lru", index, 512, capacity))
    assert hits(outcome) == [0, 0, 512 * blocks]
    expected = {MissReason.LAST_TOKEN: 512, MissReason.EVICTED: 512 * (2 - blocks)}
    assert outcome.served[2].misses == {reason: count for reason, count in expected.items() if count}
    assert outcome.served[0].misses == {MissReason.LAST_TOKEN: 512, MissReason.COLD: 1024}
    assert outcome.served[2].num_reachable_tokens == 1024


def test_warmup_fills_and_does_not_count() -> None:
    outcome = replay(by_ids([A, A]), Setting("lru", "radix", 512, 8), warmup=1)
    assert [one.number for one in outcome.served] == [1]
    assert outcome.rates.token_hit_rate == 2 / 3


@pytest.mark.parametrize(
    ("index", "hit", "misses"),
    [
        ("hash", 2048, {MissReason.LAST_TOKEN: 100, MissReason.UNALIGNED: 512}),
        ("radix", 2560, {MissReason.LAST_TOKEN: 100}),
    ],
)
def test_hash_ids_in_blocks_of_two(index: str, hit: int, misses: dict[MissReason, int]) -> None:
    length = 5 * 512 + 100
    trace = by_ids([[1, 2, 3, 4, 5, 6]] * 2, lengths=[length] * 2)
    again = replay(trace, Setting("lru", index, 1024, 10)).served[1]
    assert (again.num_hit_tokens, again.misses) == (hit, misses)
    assert again.is_full_hit


@pytest.mark.parametrize("index", ["hash", "radix"])
def test_what_never_fits_is_refused(index: str) -> None:
    for trace in (by_ids([A, [*A, 7], A]), by_tokens([A, [*A, 7], A])):
        size = trace.tokens_per_symbol
        outcome = replay(trace, Setting("lru", index, size, 3))
        assert outcome.refused == 1
        assert outcome.served[1].misses == {MissReason.SKIPPED: 4 * size}
        assert hits(outcome) == [0, 0, 2 * size]


def test_a_hit_gives_its_partial_block_up_where_that_leaves_no_room() -> None:
    # Of the two blocks there are, the source of a copy would be a third.
    outcome = replay(by_tokens([[1, 2, 3, 4], [1, 2, 3, 5, 6]]), Setting("lru", "radix", 4, 2))
    assert outcome.refused == 0
    assert hits(replay(by_tokens([[1, 2, 3, 4], [1, 2, 3, 5, 6]]), Setting("lru", "radix", 4, 3))) == [0, 3]


@pytest.mark.parametrize("index", ["hash", "radix"])
def test_answers_are_cached_behind_their_prompts(index: str) -> None:
    chat = [[1, 2, 3], [1, 2, 3, 10, 11, 12, 4]]
    outcome = replay(by_tokens(chat, outputs=[[10, 11, 12], [13]]), Setting("lru", index, 1, 20))
    assert hits(outcome) == [0, 5]  # the answer's last token was never computed
    assert hits(replay(by_tokens(chat), Setting("lru", index, 1, 20))) == [0, 3]


def test_an_answer_that_does_not_fit_is_left_out() -> None:
    outcome = replay(by_tokens([[1, 2], [1, 2, 3]], outputs=[range(10, 20), [5]]), Setting("lru", "hash", 1, 3))
    assert outcome.refused == 0
    assert hits(outcome) == [0, 2]


@pytest.mark.parametrize("index", ["hash", "radix"])
def test_policies_of_time_go_by_the_trace_s(index: str) -> None:
    # Two uses long ago weigh less than one of late: lrfu's half-life is 100 seconds.
    prompts = [[1, 2], [1, 2], [3, 4], [5, 6], [1, 2]]
    quick = by_ids(prompts, times=[0, 1, 2, 3, 4])
    slow = by_ids(prompts, times=[0, 1, 1000, 1001, 1002])
    setting = Setting("lrfu", index, 512, 4)
    assert hits(replay(quick, setting))[-1] == 512
    assert hits(replay(slow, setting))[-1] == 0


def test_more_blocks_than_are_ever_filled_cost_nothing() -> None:
    trace = by_tokens([range(40)] * 3)
    vast = replay(trace, Setting("slru", "radix", 4, 2**31 - 1))
    assert vast.served == replay(trace, Setting("slru", "radix", 4, 1000)).served


def test_a_setting_that_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match="policy must be one of"):
        replay(by_tokens([A]), Setting("arc", "hash", 1, 10))
    with pytest.raises(ConfigError, match="multiples of that block size alone, not with 16"):
        replay(by_ids([A]), Setting(block_size=16))


def test_reasons_and_hits_are_all_the_tokens() -> None:
    prompts = [[number % 3, *range(number % 7, 30), number] for number in range(40)]
    for trace in (by_tokens(prompts), by_ids(prompts)):
        for index in ("hash", "radix"):
            size = 3 * trace.tokens_per_symbol
            for capacity in (11, 40):
                outcome = replay(trace, Setting("lru", index, size, capacity))
                for one in outcome.served:
                    assert one.num_hit_tokens + sum(one.misses.values()) == one.num_prompt_tokens
                    assert min(one.misses.values()) > 0
                    assert one.num_hit_tokens <= one.num_reachable_tokens


def test_progress_is_told() -> None:
    told: list[int] = []
    trace = by_ids([A] * 600)
    replay(replace(trace, name="long"), Setting("lru", "radix", 512, 8), progress=told.append)
    assert told == [0, 256, 512]
