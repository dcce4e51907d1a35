"""Effects of known size are put into traffic, and must be found with their price."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headstart.cache import MissReason, Namespace
from headstart.cache.keys import Adapter
from headstart.lab.explain.finding import Candidate, FindingKind
from headstart.lab.explain.traffic import find_traffic
from headstart.lab.replay.outcome import Outcome, Setting
from headstart.lab.replay.replay import replay
from headstart.lab.replay.routing import replay_routed
from headstart.lab.replay.scheduled import replay_scheduled
from headstart.lab.traces.trace import Trace
from tests.lab.traffic import Texts, replay_in_batches, replay_round_robin, trace_of


def found(trace: Trace, outcome: Outcome, kind: FindingKind, **options: object) -> Candidate:
    (one,) = (c for c in find_traffic(trace, outcome, **options) if c.finding.kind is kind)  # type: ignore[arg-type]
    return one


def replay_any(trace: Trace, setting: Setting) -> Outcome:
    """As the setting says: through the scheduler, over replicas, or one request after the other."""
    if setting.replicas > 1:
        return replay_routed(trace, setting)
    return replay(trace, setting) if setting.max_num_seqs is None else replay_scheduled(trace, setting)


def kinds(trace: Trace, outcome: Outcome, **options: object) -> set[FindingKind]:
    return {c.finding.kind for c in find_traffic(trace, outcome, **options)}  # type: ignore[arg-type]


# -- beginnings shorter than a block ----------------------------------------------------------------


def test_a_shared_beginning_shorter_than_a_block() -> None:
    texts = Texts()
    system = texts.new(10)
    trace = trace_of([system + texts.new(30) for _ in range(50)])
    outcome = replay(trace, Setting(prefix_index="hash", block_size=16))
    assert outcome.rates.num_hit_tokens == 0
    one = found(trace, outcome, FindingKind.SHORT_PREFIX)
    assert one.finding.num_tokens_lost == 49 * 10
    assert one.finding.share_lost == pytest.approx(490 / 2000)
    assert one.finding.num_requests == 49
    assert "in 49 requests the whole shared beginning is shorter than a block" in one.finding.what
    assert "blocks of 2 tokens would win back 100%" in one.finding.fix
    assert [place.line for place in one.finding.evidence] == [2, 3]
    assert one.setting is not None
    assert replay(trace, one.setting).rates.num_hit_tokens == 490


def test_the_end_of_a_shared_beginning_is_lost_to_large_blocks() -> None:
    texts = Texts()
    system = texts.new(512 + 488)
    trace = trace_of([system + texts.new(100) for _ in range(20)])
    outcome = replay(trace, Setting(prefix_index="hash", block_size=512))
    one = found(trace, outcome, FindingKind.SHORT_PREFIX)
    assert one.finding.num_tokens_lost == 19 * 488
    assert "shorter than a block" not in one.finding.what
    assert "blocks of 64 tokens would win back 92%" in one.finding.fix  # 488 = 7 * 64 + 40


def test_alignment_of_hash_ids_is_seen_down_to_an_id() -> None:
    texts = Texts()
    system = texts.new(3)
    prompts = [system + texts.new(3) for _ in range(10)]
    trace = trace_of(prompts, tokens_per_symbol=512)
    outcome = replay(trace, Setting(prefix_index="hash", block_size=1024))
    one = found(trace, outcome, FindingKind.SHORT_PREFIX)
    assert one.finding.num_tokens_lost == 9 * 512
    at_an_id = replay(trace, Setting(prefix_index="hash", block_size=512))
    assert FindingKind.SHORT_PREFIX not in kinds(trace, at_an_id)


def test_the_price_is_what_the_core_calls_unaligned() -> None:
    texts, dice = Texts(), random.Random(3)
    prefixes = [texts.new(dice.randrange(5, 90)) for _ in range(12)]
    trace = trace_of([dice.choice(prefixes) + texts.new(dice.randrange(1, 40)) for _ in range(150)])
    outcome = replay(trace, Setting(prefix_index="hash", block_size=16))
    one = found(trace, outcome, FindingKind.SHORT_PREFIX)
    assert one.finding.num_tokens_lost == pytest.approx(outcome.misses[MissReason.UNALIGNED], rel=0.05)


def test_the_radix_index_loses_nothing_to_blocks() -> None:
    texts = Texts()
    system = texts.new(10)
    trace = trace_of([system + texts.new(30) for _ in range(50)])
    assert FindingKind.SHORT_PREFIX not in kinds(trace, replay(trace, Setting(block_size=16)))


# -- eviction ---------------------------------------------------------------------------------------


def test_a_cycle_larger_than_the_pool() -> None:
    texts = Texts()
    prompts = [texts.new(8 * 16) for _ in range(20)]
    trace = trace_of(prompts * 10)
    outcome = replay(trace, Setting(capacity_blocks=80))
    assert outcome.rates.num_hit_tokens == 0
    one = found(trace, outcome, FindingKind.EVICTION_PRESSURE, bytes_per_token=131_072)
    assert one.finding.num_tokens_lost == 9 * 20 * 127
    assert (
        "160 different blocks, 2.0 times the capacity of 80 blocks (1,280 tokens, 160 MiB" in one.finding.what
    )
    assert one.setting is not None
    assert one.setting.capacity_blocks is not None
    assert 158 <= one.setting.capacity_blocks <= 162
    assert replay(trace, one.setting).rates.num_hit_tokens >= 0.9 * one.finding.num_tokens_lost


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_the_pool_that_is_named_is_about_the_smallest(policy: str) -> None:
    texts, dice = Texts(), random.Random(1)
    prefixes = [texts.new(64) for _ in range(40)]
    drawn = [prefixes[int(dice.paretovariate(0.7)) % 40] for _ in range(250)]
    trace = trace_of([prefix + texts.new(20) for prefix in drawn])
    setting = Setting(policy=policy, capacity_blocks=40)
    outcome = replay(trace, setting)
    unbounded = replay(trace, replace(setting, capacity_blocks=None))
    one = found(trace, outcome, FindingKind.EVICTION_PRESSURE)
    lost = unbounded.rates.num_hit_tokens - outcome.rates.num_hit_tokens
    assert one.finding.num_tokens_lost == lost

    def won(capacity: int) -> float:
        larger = replay(trace, replace(setting, capacity_blocks=capacity))
        return (larger.rates.num_hit_tokens - outcome.rates.num_hit_tokens) / lost

    assert one.setting is not None
    named = one.setting.capacity_blocks
    assert named is not None
    assert won(named) >= 0.9
    assert won(int(named * 0.85)) < 0.9


def test_a_pool_that_holds_everything_costs_nothing() -> None:
    texts = Texts()
    trace = trace_of([texts.new(64) for _ in range(10)] * 3)
    assert FindingKind.EVICTION_PRESSURE not in kinds(trace, replay(trace, Setting(capacity_blocks=44)))


# -- batches ----------------------------------------------------------------------------------------


def test_requests_side_by_side_leave_no_room_to_keep() -> None:
    texts = Texts()
    chats = [texts.new(64) for _ in range(8)]
    prompts = [chats[number % 8] + texts.new(64) for number in range(160)]
    trace = trace_of(prompts)
    setting = Setting(capacity_blocks=72, max_num_seqs=8)
    outcome = replay_in_batches(trace, setting)
    alone = replay(trace, setting)
    lost = alone.rates.num_hit_tokens - outcome.rates.num_hit_tokens
    assert lost > 0.1 * outcome.rates.num_prompt_tokens
    one = found(trace, outcome, FindingKind.BATCH_CONTENTION, replay=replay_in_batches)
    assert one.finding.num_tokens_lost == lost
    assert (
        "up to 8 requests run at once and hold 8 blocks each at their end, 0.9 times the pool"
        in one.finding.what
    )
    assert one.setting == replace(setting, max_num_seqs=4)
    better = replay_in_batches(trace, one.setting)
    assert better.rates.num_hit_tokens > outcome.rates.num_hit_tokens + 0.2 * lost


def test_the_engines_scheduler_contends_where_some_answers_are_long() -> None:
    texts = Texts()
    chats = [texts.new(64) for _ in range(16)]
    trace = trace_of([chats[number % 16] + texts.new(64) for number in range(96)])
    requests = [
        replace(request, num_output_tokens=64 if number % 7 else 512)
        for number, request in enumerate(trace.requests)
    ]
    trace = replace(trace, requests=requests)
    setting = Setting(capacity_blocks=320, max_num_seqs=16)
    outcome = replay_scheduled(trace, setting)
    lost = 80 * 64 - outcome.rates.num_hit_tokens  # one at a time, all but the first of each chat hit
    one = found(trace, outcome, FindingKind.BATCH_CONTENTION, replay=replay_any)
    assert one.finding.num_tokens_lost == lost > 0
    assert "hold 16 blocks each at their end, 0.8 times the pool of 320" in one.finding.what


def test_few_requests_in_a_large_pool_do_not_contend() -> None:
    texts = Texts()
    trace = trace_of([texts.new(64) for _ in range(40)] * 2)
    outcome = replay_in_batches(trace, Setting(capacity_blocks=100, max_num_seqs=4))
    assert FindingKind.BATCH_CONTENTION not in kinds(trace, outcome, replay=replay_in_batches)


# -- namespaces -------------------------------------------------------------------------------------


def test_salts_that_split_a_shared_beginning() -> None:
    texts = Texts()
    system = texts.new(100)
    salts = [Namespace(salt=f"user {number % 10}") for number in range(100)]
    trace = trace_of([system + texts.new(20) for _ in salts], namespaces=salts)
    outcome = replay(trace, Setting())
    assert outcome.rates.num_hit_tokens == 90 * 100
    one = found(trace, outcome, FindingKind.SPLIT_NAMESPACES)
    assert one.finding.num_tokens_lost == 9 * 100
    assert one.finding.num_requests == 9
    assert "10 salts" in one.finding.what
    assert "on purpose" in one.finding.fix
    assert one.rewritten is not None
    assert replay(one.rewritten(), Setting()).rates.num_hit_tokens == 99 * 100


def test_adapters_are_told_apart_from_salts_and_cannot_be_merged() -> None:
    texts = Texts()
    system = texts.new(100)
    adapters = [Namespace(Adapter(f"a{number % 4}", "00")) for number in range(40)]
    trace = trace_of([system + texts.new(20) for _ in adapters], namespaces=adapters)
    one = found(trace, replay(trace, Setting()), FindingKind.SPLIT_NAMESPACES)
    assert one.finding.num_tokens_lost == 3 * 100
    assert one.rewritten is None
    assert "K and V differ" in one.finding.fix


def test_salts_over_different_texts_cost_nothing() -> None:
    texts = Texts()
    salts = [Namespace(salt=f"user {number}") for number in range(20)]
    trace = trace_of([texts.new(50) for _ in salts], namespaces=salts)
    assert FindingKind.SPLIT_NAMESPACES not in kinds(trace, replay(trace, Setting()))


# -- what never comes back --------------------------------------------------------------------------


def test_prompts_that_never_come_back() -> None:
    texts = Texts()
    asked_often = texts.new(96)
    prompts = [asked_often if number % 2 else texts.new(96) for number in range(100)]
    trace = trace_of(prompts)
    one = found(trace, replay(trace, Setting()), FindingKind.COLD_TAIL)
    assert one.finding.num_tokens_lost == pytest.approx(50 * 96, rel=0.05)
    assert "50 of 100 prompts (50.0%) share no block" in one.finding.what
    assert "nothing to win" in one.finding.fix
    assert one.setting is None
    assert one.rewritten is None


def test_a_cold_tail_is_shown_where_it_begins() -> None:
    """Also in the first request, which computes what later ones share."""
    texts = Texts()
    shared = texts.new(160)
    trace = trace_of([shared + texts.new(48) for _ in range(20)])
    one = found(trace, replay(trace, Setting()), FindingKind.COLD_TAIL)
    assert [(shown.line, shown.position) for shown in one.finding.evidence] == [(1, 160), (2, 161)]
    assert "the ends of the prompts" in one.finding.what


def test_text_that_comes_back_behind_other_beginnings_is_no_cold_tail() -> None:
    texts = Texts()
    document = texts.new(2000)
    trace = trace_of([texts.new(4) + document for _ in range(50)])
    assert FindingKind.COLD_TAIL not in kinds(trace, replay(trace, Setting()))


def test_text_that_comes_back_under_another_salt_is_no_cold_tail() -> None:
    document = Texts().new(200)
    salts = [Namespace(salt=f"{number}") for number in range(20)]
    trace = trace_of([document] * 20, namespaces=salts)
    assert kinds(trace, replay(trace, Setting())) == {FindingKind.SPLIT_NAMESPACES}


# -- replicas ---------------------------------------------------------------------------------------


def test_round_robin_computes_each_prefix_on_every_replica() -> None:
    texts = Texts()
    prefixes = [texts.new(160) for _ in range(5)]
    prompts = [prefixes[number % 5] + texts.new(20) for number in range(200)]
    trace = trace_of(prompts)
    setting = Setting(replicas=4, routing="round-robin")
    outcome = replay_round_robin(trace, setting)
    one = found(trace, outcome, FindingKind.ROUTING_DILUTION, replay=replay_any)
    assert one.finding.num_tokens_lost == 3 * 5 * 160
    assert one.finding.num_requests == 15
    assert one.setting == replace(setting, routing="prefix")


def test_prefix_routing_is_no_fix_where_it_wins_nothing() -> None:
    """One prefix that everybody has is computed on each replica, wherever requests go."""
    texts = Texts()
    prefix = texts.new(160)
    trace = trace_of([prefix + texts.new(20) for _ in range(100)])
    outcome = replay_any(trace, Setting(replicas=4, routing="round-robin"))
    one = found(trace, outcome, FindingKind.ROUTING_DILUTION, replay=replay_any)
    assert one.finding.num_tokens_lost == 3 * 160
    assert "prefix routing would win nothing back" in one.finding.fix
    assert one.setting is None


def test_prefix_routing_wins_back_what_random_routing_loses() -> None:
    texts = Texts()
    prefixes = [texts.new(160) for _ in range(12)]
    dice = random.Random(5)
    trace = trace_of([dice.choice(prefixes) + texts.new(20) for _ in range(300)])
    setting = Setting(replicas=4, routing="random")
    outcome = replay_any(trace, setting)
    one = found(trace, outcome, FindingKind.ROUTING_DILUTION, replay=replay_any)
    met = len({(at.replica, trace.requests[at.number].symbols[:640]) for at in outcome.served})
    assert one.finding.num_tokens_lost == (met - 12) * 160
    assert one.setting is not None
    after = replay_any(trace, one.setting)
    won = after.rates.num_hit_tokens - outcome.rates.num_hit_tokens
    assert won >= 0.9 * one.finding.num_tokens_lost


def test_one_cache_has_the_memory_of_all_replicas() -> None:
    texts = Texts()
    prefixes = [texts.new(160) for _ in range(5)]
    trace = trace_of([prefixes[number % 5] for number in range(200)])
    setting = Setting(replicas=4, routing="round-robin", capacity_blocks=20)
    outcome = replay_round_robin(trace, setting)
    one = found(trace, outcome, FindingKind.ROUTING_DILUTION, replay=replay_round_robin)
    pooled = replay(trace, Setting(capacity_blocks=80))
    assert one.finding.num_tokens_lost == pooled.rates.num_hit_tokens - outcome.rates.num_hit_tokens > 0


# -- all of them ------------------------------------------------------------------------------------


def test_the_dearest_comes_first_and_warm_up_does_not_count() -> None:
    texts = Texts()
    prompts = [texts.new(8 * 16) for _ in range(20)]
    trace = trace_of(prompts * 4 + [texts.new(64) for _ in range(20)])
    outcome = replay(trace, Setting(capacity_blocks=80), warmup=60)
    candidates = find_traffic(trace, outcome)
    assert [one.finding.kind for one in candidates] == [
        FindingKind.EVICTION_PRESSURE,
        FindingKind.COLD_TAIL,
    ]
    assert candidates[0].finding.num_tokens_lost == 20 * 127
    assert candidates[0].finding.share_lost == pytest.approx(20 * 127 / (20 * 128 + 20 * 64))


def test_nothing_is_said_of_a_trace_without_content_or_of_small_things() -> None:
    trace = trace_of([Texts().new(64)] * 3)
    outcome = replay(trace, Setting())
    assert find_traffic(trace, outcome) == []
    assert find_traffic(replace(trace, has_content=False), outcome) == []
    assert find_traffic(trace, replace(outcome, served=[])) == []
    texts = Texts()
    system = texts.new(10)
    aligned = trace_of([system + texts.new(30) for _ in range(50)])
    hashed = replay(aligned, Setting(prefix_index="hash", block_size=16))
    assert FindingKind.SHORT_PREFIX in kinds(aligned, hashed)
    assert FindingKind.SHORT_PREFIX not in kinds(aligned, hashed, least_share=0.3)
