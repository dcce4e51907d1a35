"""Each variable with traffic that makes it good, marginal or bad by a known amount."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace

import pytest

from headstart.errors import ConfigError, TraceError
from headstart.lab.replay.bounds import bounds_of
from headstart.lab.replay.capacity import Capacity
from headstart.lab.replay.outcome import Setting
from headstart.lab.replay.replay import replay
from headstart.lab.replay.residence import residence
from headstart.lab.traces.paths import number_blocks
from headstart.lab.verdict import Limits, Variable, Verdict, Word, judge
from tests.lab.traffic import Texts, trace_of


def variable(verdict: Verdict, name: str) -> Variable:
    (one,) = (one for one in verdict.variables if one.name == name)
    return one


def test_limits_have_a_direction() -> None:
    more, less = Limits(good=4, marginal=1), Limits(good=1, marginal=3)
    assert [more.word(value) for value in (4, 3.9, 1, 0.9, None)] == [
        *(Word.GOOD, Word.MARGINAL, Word.MARGINAL, Word.BAD, Word.UNKNOWN)
    ]
    assert [less.word(value) for value in (1, 1.1, 3, 3.1)] == [
        *(Word.GOOD, Word.MARGINAL, Word.MARGINAL, Word.BAD)
    ]


def test_a_long_system_prompt() -> None:
    texts = Texts()
    system = texts.new(160)
    trace = trace_of([system + texts.new(40) for _ in range(101)])
    verdict = judge(trace, capacity=Capacity.parse("100"), seconds_per_token=0.001)
    assert variable(verdict, "shared_requests").value == pytest.approx(100 / 101)
    assert variable(verdict, "shared_tokens").value == pytest.approx(100 * 160 / (101 * 200))
    assert variable(verdict, "prefix_length").value == pytest.approx(10.0)
    assert variable(verdict, "pressure").value == pytest.approx(10 / 100)
    assert variable(verdict, "reuse_gap").word is Word.GOOD
    assert verdict.word is Word.GOOD
    assert verdict.rates.num_hit_tokens == 16_000
    assert verdict.first_token_s == pytest.approx(0.2)
    assert verdict.saved_first_token_s == pytest.approx(16 / 101)
    assert verdict.total_saved_s == pytest.approx(16)
    assert verdict.sentence == (
        "Yes: with 100 blocks of 16 tokens and the radix index prefix caching hits 79.2% of the prompt "
        "tokens, which saves 158 ms of the 200 ms that computing a prompt takes in the mean."
    )


def test_a_share_of_the_blocks_is_the_capacity_that_a_replay_means() -> None:
    """An answer that comes back in the next prompt is computed for no prompt, and adds nothing to U."""
    texts = Texts()
    question, answer = texts.new(32), texts.new(65)
    trace = trace_of([question, question + answer[:64] + texts.new(16)])
    answered = replace(trace.requests[0], output=array("i", answer).tobytes())
    trace = replace(trace, requests=[answered, trace.requests[1]])
    unique = bounds_of(trace, 16).num_unique_blocks
    assert unique == 3
    verdict = judge(trace, capacity=Capacity.parse("400%"))
    assert verdict.setting.capacity_blocks == 4 * unique
    assert "the pool has 12 (U/C 0.25)" in variable(verdict, "pressure").shown


def test_prompts_that_share_nothing() -> None:
    texts = Texts()
    verdict = judge(trace_of([texts.new(100) for _ in range(20)]), capacity=Capacity.parse("1000"))
    assert [one.word for one in verdict.variables] == [Word.BAD, Word.BAD, Word.BAD, Word.GOOD, Word.BAD]
    assert verdict.word is Word.BAD
    assert verdict.sentence.startswith("Hardly: ")
    assert verdict.sentence.endswith("; few requests begin like an earlier one.")


@pytest.mark.parametrize(("index", "word", "rate"), [("radix", Word.MARGINAL, 0.2), ("hash", Word.BAD, 0.0)])
def test_a_shared_prefix_shorter_than_a_block(index: str, word: Word, rate: float) -> None:
    texts = Texts()
    system = texts.new(10)
    trace = trace_of([system + texts.new(40) for _ in range(200)])
    verdict = judge(trace, prefix_index=index)
    length = variable(verdict, "prefix_length")
    assert length.value == pytest.approx(10 / 16)
    assert length.word is Word.BAD
    assert variable(verdict, "shared_requests").value == 0.0
    assert verdict.rates.token_hit_rate == pytest.approx(rate, abs=0.002)
    assert verdict.word is word


def test_a_pool_that_is_too_small() -> None:
    texts = Texts()
    prefixes = [texts.new(160) for _ in range(40)]
    prompts = [prefixes[number % 40] + texts.new(16) for number in range(400)]
    trace = trace_of(prompts, arrivals=[float(number) for number in range(400)])
    verdict = judge(trace, capacity=Capacity.parse("100"))
    assert variable(verdict, "pressure").value == pytest.approx(4.0)
    gap = variable(verdict, "reuse_gap")
    assert gap.word is Word.BAD
    assert "a block comes back after 40.0 s" in gap.shown
    assert verdict.rates.num_hit_tokens == 0
    assert "the prefixes that come back do not fit into the pool" in verdict.sentence
    assert "(a pool that holds everything would hit 81.8%)" in verdict.sentence
    untimed = judge(trace_of(prompts), capacity=Capacity.parse("100"))
    assert "a block comes back after 429 blocks taken" in variable(untimed, "reuse_gap").shown
    assert variable(untimed, "reuse_gap").value == pytest.approx(4.4, rel=0.1)
    enough = judge(trace, capacity=Capacity.parse("1000"))
    assert enough.word is Word.GOOD
    assert variable(enough, "reuse_gap").word is not Word.BAD


def test_residence_by_hand() -> None:
    trace = trace_of([[1], [2], [3], [1], [1]])
    paths = number_blocks(trace, 1)
    held = residence(paths, 2, [0.0, 10.0, 30.0, 60.0, 100.0])
    # The 1 comes back after 60 s and 40 s.  It is evicted for the 3, the 2 for the 1.
    assert held.reuse_gap == 50.0
    assert held.stay == (30.0 + 50.0) / 2
    assert held.num_evicted == 2
    assert residence(paths, None, range(5)).stay is None
    assert residence(number_blocks(trace_of([[1], [2]]), 1), 2, range(2)).reuse_gap is None


@pytest.mark.parametrize(
    ("capacity", "blocks"), [("50", 50), ("1600t", 100), ("50%", 10), ("1MiB", 64), ("unbounded", None)]
)
def test_capacities_in_other_units(capacity: str, blocks: int | None) -> None:
    texts = Texts()
    trace = trace_of([texts.new(64) for _ in range(5)])
    verdict = judge(trace, capacity=Capacity.parse(capacity), kv_bytes_per_token=1024)
    assert verdict.setting.capacity_blocks == blocks


def test_without_a_capacity_two_variables_are_unknown() -> None:
    texts = Texts()
    prompt = texts.new(64)
    verdict = judge(trace_of([prompt] * 5))
    assert [one.word for one in verdict.variables][3:] == [Word.UNKNOWN, Word.UNKNOWN]
    assert "4 of 4 different blocks come back; --capacity" in variable(verdict, "pressure").shown
    assert "No capacity was given, so the pool holds everything." in verdict.notes


def test_the_verdict_is_that_of_a_replay() -> None:
    texts = Texts()
    prefixes = [texts.new(50) for _ in range(10)]
    trace = trace_of([prefixes[number % 7] + texts.new(20) for number in range(100)])
    verdict = judge(trace, capacity=Capacity.parse("30"), prefix_index="hash", block_size=8)
    setting = Setting(prefix_index="hash", block_size=8, capacity_blocks=30)
    assert verdict.setting == setting
    assert verdict.rates == replay(trace, setting).rates
    unbounded = replay(trace, replace(setting, capacity_blocks=None))
    assert verdict.unbounded_token_hit_rate == pytest.approx(unbounded.rates.token_hit_rate)


def test_hash_ids_have_their_own_block_size() -> None:
    trace = trace_of([[1, 2, 3], [1, 2, 4]], tokens_per_symbol=512)
    verdict = judge(trace)
    assert verdict.setting.block_size == 512
    assert variable(verdict, "prefix_length").value == 2.0
    assert any("A hash id stands for 512 tokens" in note for note in verdict.notes)
    with pytest.raises(ConfigError, match="multiples"):
        judge(trace, block_size=16)


def test_what_cannot_be_judged() -> None:
    trace = trace_of([[1, 2, 3]])
    with pytest.raises(TraceError, match="no hit rate can be told"):
        judge(replace(trace, has_content=False))
    with pytest.raises(ConfigError, match="no requests"):
        judge(replace(trace, requests=[]))


def test_everything_is_json() -> None:
    texts = Texts()
    verdict = judge(trace_of([texts.new(20) for _ in range(3)]), capacity=Capacity.parse("10"))
    told = json.loads(json.dumps(verdict.fields(), allow_nan=False))
    assert told["verdict"] == "bad"
    assert told["token_hit_rate"] == 0.0
    assert told["variables"][4] == {
        "name": "reuse_gap",
        "value": None,
        "good": 0.5,
        "marginal": 1.0,
        "word": "bad",
        "shown": "nothing comes back",
    }


def test_progress_goes_up_to_twice_the_requests() -> None:
    texts = Texts()
    seen: list[int] = []
    judge(trace_of([texts.new(4) for _ in range(600)]), progress=seen.append)
    assert seen == sorted(seen)
    assert 600 < seen[-1] <= 1200
