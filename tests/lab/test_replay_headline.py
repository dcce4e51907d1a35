"""What the headline says of sweeps made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstart.cache.reasons import MissReason
from headstart.lab.replay.analysis import Result
from headstart.lab.replay.changes import difference
from headstart.lab.replay.headline import Headline, headline
from headstart.lab.replay.outcome import OPTIMAL, Bounds, Outcome, Setting
from tests.replayed import outcome_of, unbounded_at

SOME = [(100, 20)] * 10
NOW = "At 100 blocks of 16 tokens LRU hits 18.8 % of prompt tokens"
STEPS = (
    "Doubling the capacity, to 200 blocks, gives +9.1 points; 4 times the capacity, to 400 blocks, gives "
    "+21.0 points"
)
BUT = ", and that takes knowing the future."
FLATTERS = (
    "The token rate flatters: half of the requests hit nothing at all. 10.0 % of requests hit all they could."
)


def said(*outcomes: Outcome, bounds: Bounds | None = None) -> Headline:
    """The headline of the first of ``outcomes``, in plain spaces."""
    results = [Result.of(one) for one in outcomes]
    found = headline(results[0], results, bounds)
    plain = [" ".join(sentence.split()) for sentence in [found.verdict, *found.sentences]]
    return Headline(plain[0], plain[1:], found.options)


def hitting(share: float, **setting: object) -> Outcome:
    """All that is not hit was evicted, where nothing else is said."""
    setting = {"misses": {MissReason.EVICTED: round(1000 - 1000 * share)}, **setting}
    return outcome_of(*[(1000, round(1000 * share))] * 10, **setting)  # type: ignore[arg-type]


def test_evictions_and_what_helps_against_them() -> None:
    found = said(
        hitting(0.188),
        hitting(0.279, capacity=200),
        hitting(0.398, capacity=400),
        hitting(0.207, policy="lfu"),
        hitting(0.180, policy="fifo"),
        hitting(0.350, policy=OPTIMAL),
        hitting(0.5, policy="lfu", capacity=200),  # two changes at once
        bounds=unbounded_at(0.398),
    )
    assert found.verdict == "Evictions lose 21.0 points of the 39.8 % that could hit"
    assert found.sentences[:3] == [
        NOW + "; a cache that never evicts would hit 39.8 %.",
        STEPS + "; evicting by LFU gives +1.9 points.",
        "No policy can hit more than 35.0 % at this capacity (+16.2 points)" + BUT,
    ]
    assert [(option.words, round(option.gain, 3)) for option in found.options] == [
        ("4 times the capacity, to 400 blocks", 0.21),
        ("doubling the capacity, to 200 blocks", 0.091),
        ("evicting by LFU", 0.019),
        ("evicting by FIFO", -0.008),
    ]


def test_nothing_else_was_tried() -> None:
    found = said(hitting(0.2), bounds=unbounded_at(0.5))
    assert found.verdict == "Evictions lose 30.0 points of the 50.0 % that could hit"
    assert "No larger capacity was tried: sweep some to see what they would give." in found.sentences
    assert found.options == []
    assert not any("policy" in sentence for sentence in found.sentences)


def test_other_policies_are_worse() -> None:
    found = said(hitting(0.2), hitting(0.1, policy="lfu"), bounds=unbounded_at(0.5))
    assert "Nothing else that was tried at this capacity does better." in found.sentences


def test_capacity_does_not_help() -> None:
    outcome = hitting(0.395, misses={MissReason.COLD: 590, MissReason.LAST_TOKEN: 15})
    found = said(outcome, hitting(0.394, capacity=40), hitting(0.2, capacity=20), bounds=unbounded_at(0.398))
    assert found.verdict == "The cache is big enough: more capacity would not help"
    assert found.sentences[1:] == [
        "40 blocks would already do, within a point.",
        "59.0 % of tokens are cold: text that was never seen before, which no cache can have.",
    ]


def test_what_other_things_than_evictions_lose() -> None:
    outcome = hitting(0.2, misses={MissReason.COLD: 780, MissReason.EVICTED: 20})
    spread = replace(outcome, setting=replace(outcome.setting, replicas=4))
    alone = replace(outcome, setting=replace(outcome.setting, replicas=1))
    found = said(spread, alone, bounds=unbounded_at(0.5))
    assert found.verdict == "30.0 points of the 50.0 % that could hit are lost"
    assert found.sentences[-1] == (
        "78.0 % of tokens are cold: text that its replica, one of 4, never saw; another one may have it."
    )


def test_the_radix_index_may_lose_more_than_whole_blocks() -> None:
    outcome = hitting(0.3, misses={MissReason.EVICTED: 250})
    radix = replace(outcome, setting=replace(outcome.setting, prefix_index="radix"))
    assert said(radix, bounds=unbounded_at(0.5)).verdict.startswith(
        "Evictions lose 25.0 points of the 55.0 %"
    )
    assert said(outcome, bounds=unbounded_at(0.5)).verdict.startswith(
        "Evictions lose 20.0 points of the 50.0 %"
    )


def test_hardly_anything_is_shared() -> None:
    found = said(hitting(0.01), bounds=unbounded_at(0.02))
    assert found.verdict == "Hardly any prompt begins like an earlier one: caching has little to work on"


def test_an_unbounded_replay_says_what_could_hit() -> None:
    found = said(hitting(0.2), hitting(0.3, capacity=None))
    assert found.verdict == "Evictions lose 10.0 points of the 30.0 % that could hit"


def test_without_bounds_nothing_is_said_of_what_could_hit() -> None:
    found = said(hitting(0.2))
    assert found.verdict == "20.0 % of prompt tokens hit"
    assert found.sentences[0] == "At 100 blocks of 16 tokens LRU hits 20.0 % of prompt tokens."


def test_the_unbounded_cache_as_the_present_state() -> None:
    found = said(hitting(0.3, capacity=None), hitting(0.295, capacity=50))
    assert found.sentences == [
        "A cache that never evicts, in blocks of 16 tokens, hits 30.0 % of prompt tokens.",
        "50 blocks would already do, within a point.",
    ]


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        (MissReason.DIVERGED, "move what varies to the end"),
        (MissReason.UNALIGNED, "smaller blocks or the radix index"),
        (MissReason.IN_FLIGHT, "at the same moment"),
        (MissReason.ISOLATED, "namespace"),
        (MissReason.SKIPPED, "do not read the cache"),
        (MissReason.LAST_TOKEN, "must be computed"),
    ],
)
def test_large_causes_have_their_advice(reason: MissReason, advice: str) -> None:
    large, small = hitting(0.2, misses={reason: 60}), hitting(0.2, misses={reason: 40})
    assert any(s.startswith("6.0 % of tokens are ") and advice in s for s in said(large).sentences)
    assert not any(advice in sentence for sentence in said(small).sentences)


def test_the_token_rate_flatters() -> None:
    found = said(outcome_of((10_000, 9_999), *[(100, 0)] * 9))
    assert found.sentences[-1] == FLATTERS
    assert not any("flatters" in sentence for sentence in said(outcome_of(*SOME)).sentences)


def test_requests_that_never_fit() -> None:
    found = said(outcome_of(*SOME, refused=3))
    assert "3 of the trace's requests do not fit into the cache at all: they hit nothing." in found.sentences


def test_nothing_was_counted() -> None:
    assert said(outcome_of()).verdict == "No request was counted, so there is nothing to say."


HERE = Setting("lru", "radix", 16, 100)


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (HERE, None),
        (Setting(OPTIMAL, "radix", 16, 100), None),
        (Setting("lru", "radix", 16, 50), "half the capacity, to 50 blocks"),
        (Setting("lru", "radix", 16, 300), "3 times the capacity, to 300 blocks"),
        (Setting("lru", "radix", 16, None), "never evicting"),
        (Setting("lfu", "radix", 16, 100), "evicting by LFU"),
        (Setting("lru", "hash", 16, 100), "the hash index"),
        (Setting("lru", "radix", 32, 50), "blocks of 32 tokens"),  # as many tokens
        (Setting("lru", "radix", 32, 100), None),
        (Setting("lru", "radix", 16, 100, max_num_seqs=8), "8 requests at once"),
        (Setting("lru", "radix", 16, 100, replicas=4), "4 replicas"),
        (Setting("lru", "hash", 16, 200), None),
    ],
)
def test_one_change_in_words(there: Setting, words: str | None) -> None:
    assert difference(HERE, there) == words
