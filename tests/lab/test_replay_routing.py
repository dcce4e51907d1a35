from __future__ import annotations

from array import array
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.cache import Namespace
from headstart.errors import ConfigError
from headstart.lab.replay.costs import CostModel
from headstart.lab.replay.outcome import Outcome, Setting
from headstart.lab.replay.replay import replay
from headstart.lab.replay.routers import (
    IMBALANCE,
    SLACK,
    WINDOW,
    ConsistentHashRouter,
    PrefixRouter,
    Routing,
)
from headstart.lab.replay.routing import replay_routed, route
from headstart.lab.replay.scheduled import replay_scheduled
from headstart.lab.traces.trace import Trace, TraceFormat, TraceRequest

COSTS = CostModel(step=1.0, prefill_token=0.0, decode_row=0.0)


def request(tokens: list[int], **more: object) -> TraceRequest:
    return TraceRequest(array("i", tokens).tobytes(), len(tokens), **more)  # type: ignore[arg-type]


def trace(*requests: TraceRequest) -> Trace:
    return Trace("made", TraceFormat.TOKENS, list(requests))


def setting(routing: str, replicas: int = 4, capacity: int | None = None, seqs: int | None = None) -> Setting:
    return Setting("lru", "radix", 4, capacity, seqs, replicas, routing)


def documents(count: int, requests: int, seed: int = 0) -> Trace:
    """Questions of 4 tokens about documents of 40, at random."""
    rng = Random(seed)
    made = []
    for number in range(requests):
        first = 1000 * rng.randrange(count)
        question = [10**6 + 4 * number + place for place in range(4)]
        made.append(request([*range(first, first + 40), *question]))
    return trace(*made)


def replicas_of(outcome: Outcome) -> list[int]:
    return [one.replica for one in outcome.served]


# -- who goes where ------------------------------------------------------------------------------


def test_round_robin() -> None:
    assert route(documents(2, 6), setting("round-robin")) == [0, 1, 2, 3, 0, 1]


def test_random_is_fair_and_the_same_for_a_seed() -> None:
    traffic = documents(2, 400)
    chosen = route(traffic, setting("random"), seed=1)
    assert chosen == route(traffic, setting("random"), seed=1)
    assert chosen != route(traffic, setting("random"), seed=2)
    assert all(70 <= count <= 130 for count in Counter(chosen).values())


@pytest.mark.parametrize(
    "key",
    [
        lambda name: {"session": f"s{name}"},
        lambda name: {"body": {"user": f"u{name}"}},
        lambda name: {"body": {"prompt_cache_key": f"k{name}", "user": "all the same"}},
        lambda name: {"namespace": Namespace(salt=f"n{name}")},
    ],
)
def test_consistent_hash_goes_by_the_key_and_not_by_the_prompt(key: object) -> None:
    assert callable(key)
    router = ConsistentHashRouter(4, 4)
    chosen = [{router.choose(request([prompt], **key(name))) for prompt in range(5)} for name in range(40)]
    assert all(len(some) == 1 for some in chosen)
    assert set.union(*chosen) == {0, 1, 2, 3}


def test_without_a_key_consistent_hash_goes_by_the_first_block() -> None:
    router = ConsistentHashRouter(4, 4)
    for first in range(20):
        equal = [first, 2, 3, 4]
        assert router.choose(request([*equal, 5])) == router.choose(request([*equal, 6]))
    assert {router.choose(request([first, 2, 3, 4])) for first in range(20)} == {0, 1, 2, 3}


def test_one_more_replica_moves_its_own_share_alone() -> None:
    before, after = ConsistentHashRouter(4, 4), ConsistentHashRouter(5, 4)
    moved = [
        (before.choose(each), after.choose(each))
        for each in (request([1], session=str(name)) for name in range(500))
    ]
    assert all(old == new or new == 4 for old, new in moved)
    assert 60 <= sum(new == 4 for _, new in moved) <= 140


def test_prefix_goes_where_the_longest_match_was_sent() -> None:
    router = PrefixRouter(3, 4)
    a, b, c = list(range(8)), list(range(100, 108)), list(range(200, 208))
    assert [router.choose(request(prompt)) for prompt in (a, b, c)] == [0, 1, 2]
    assert router.choose(request([*b, 1, 2, 3, 4])) == 1
    assert router.choose(request([*c, 1])) == 2
    assert router.choose(request([*a[:4], 9, 9, 9, 9])) == 0


def test_equally_long_matches_go_where_the_load_is_least() -> None:
    router = PrefixRouter(2, 4)
    shared = [1, 2, 3, 4]
    chosen = [router.choose(request([*shared, 10 * number, 1, 1, 1])) for number in range(20)]
    assert 7 <= chosen.count(0) <= 13


def test_a_prefix_that_all_share_does_not_flood_one_replica() -> None:
    router = PrefixRouter(4, 4)
    for _ in range(WINDOW * 4 * 3):
        router.choose(request([1, 2, 3, 4]))
    latest = Counter(router.choose(request([1, 2, 3, 4])) for _ in range(WINDOW * 4))
    assert len(latest) == 4
    assert max(latest.values()) <= IMBALANCE * min(latest.values()) + SLACK + 1


def test_namespaces_are_other_prefixes() -> None:
    router = PrefixRouter(2, 4)
    prompt = [1, 2, 3, 4]
    a, b = Namespace(salt="a"), Namespace(salt="b")
    assert [router.choose(request(prompt, namespace=space)) for space in (a, b, b, a)] == [0, 1, 1, 0]


def test_a_prefix_routers_memory_is_bounded() -> None:
    router = PrefixRouter(2, 4, memory_blocks=4)
    prompts = [[number, 2, 3, 4, 5, 6, 7, 8] for number in range(100)]
    chosen = [router.choose(request(prompt)) for prompt in prompts]
    assert all(len(sent) <= 4 for sent in router._sent)
    assert router.choose(request(prompts[-1])) == chosen[-1]


@pytest.mark.parametrize("routing", list(Routing))
def test_one_replica_gets_everything(routing: Routing) -> None:
    traffic = documents(5, 30)
    point = setting(routing, replicas=1, capacity=40)
    outcome = replay_routed(traffic, point)
    assert outcome.served == replay(traffic, point).served
    assert outcome.num_evicted_blocks == replay(traffic, point).num_evicted_blocks


def test_what_is_no_routing_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"routing must be one of random, round-robin, .*, not 'best'"):
        replay_routed(documents(1, 1), setting("best"))
    with pytest.raises(ConfigError, match="replicas must be at least 1, not 0"):
        replay_routed(documents(1, 1), setting("random", replicas=0))


# -- what comes of it ----------------------------------------------------------------------------


def test_two_replicas_by_hand() -> None:
    """a, b, a, b, a in turn: the replicas see a, a, a and b, b; each hits all but its first."""
    a, b = list(range(8)), list(range(100, 108))
    outcome = replay_routed(trace(*map(request, (a, b, a, b, a))), setting("round-robin", replicas=2))
    assert replicas_of(outcome) == [0, 1, 0, 1, 0]
    assert [one.num_hit_tokens for one in outcome.served] == [0, 0, 7, 7, 7]
    assert [one.number for one in outcome.served] == [0, 1, 2, 3, 4]
    diluted = replay_routed(trace(*map(request, (a, a, b, a))), setting("round-robin", replicas=2))
    assert [one.num_hit_tokens for one in diluted.served] == [0, 0, 0, 7]


def test_dilution() -> None:
    """24 documents of 10 blocks, and replicas that keep 8 of them: a quarter of the traffic, or all of it."""
    traffic = documents(24, 1000)
    rates = {
        routing: replay_routed(traffic, setting(routing, capacity=90)).rates.token_hit_rate
        for routing in Routing
    }
    assert rates[Routing.PREFIX] > 0.8
    assert rates[Routing.CONSISTENT_HASH] > rates[Routing.RANDOM] + 0.1
    for blind in (Routing.RANDOM, Routing.ROUND_ROBIN):
        assert rates[blind] == pytest.approx(8 / 24 * 40 / 44, abs=0.05)


def test_the_warm_up_is_that_of_the_whole_trace() -> None:
    told: list[int] = []
    outcome = replay_routed(
        documents(4, 1000), setting("round-robin", replicas=2), warmup=990, progress=told.append
    )
    assert [one.number for one in outcome.served] == list(range(990, 1000))
    assert told == sorted(told)
    assert told[-1] == 756


def test_replicas_with_requests_that_overlap() -> None:
    """Two seats for four requests of two steps each: with two replicas, nobody waits."""
    traffic = trace(*(request([name] * 8, arrival_s=0.0, num_output_tokens=2) for name in range(4)))
    alone = replay_scheduled(traffic, setting("round-robin", replicas=1, seqs=2), COSTS)
    both = replay_routed(traffic, setting("round-robin", replicas=2, seqs=2), COSTS)
    assert [one.first_token_s for one in alone.served] == [1.0, 1.0, 3.0, 3.0]
    assert [one.first_token_s for one in both.served] == [1.0, 1.0, 1.0, 1.0]


def test_another_replay_can_be_used_for_the_parts() -> None:
    traffic = documents(3, 20)
    lengths: list[int] = []

    def one_replica(part: Trace, point: Setting) -> Outcome:
        lengths.append(len(part.requests))
        return replay(part, point)

    outcome = replay_routed(traffic, setting("round-robin"), one_replica=one_replica)
    assert lengths == [5, 5, 5, 5]
    assert outcome.served == replay_routed(traffic, setting("round-robin")).served


@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=16), max_size=25),
    routing=st.sampled_from(list(Routing)),
    replicas=st.integers(1, 4),
)
def test_every_request_is_served_once(prompts: list[list[int]], routing: Routing, replicas: int) -> None:
    traffic = trace(*map(request, prompts))
    point = setting(routing, replicas=replicas, capacity=6)
    outcome = replay_routed(traffic, point)
    assert [one.number for one in outcome.served] == list(range(len(prompts)))
    assert replicas_of(outcome) == route(traffic, point)
    assert [one.num_prompt_tokens for one in outcome.served] == list(map(len, prompts))
    for one in outcome.served:
        assert one.num_hit_tokens + sum(one.misses.values()) == one.num_prompt_tokens
