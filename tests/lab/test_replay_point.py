"""What is true of every kind of replay: one after the other, overlapping, routed, and the optimum."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from headstart.cache.reasons import MissReason
from headstart.lab.replay.outcome import OPTIMAL, Setting
from headstart.lab.replay.point import replay_point
from headstart.lab.traces.trace import Trace, TraceFormat, TraceRequest

SIZE = 4
KINDS = {
    "one after the other": Setting(),
    "optimum": Setting(OPTIMAL, "hash"),
    "overlapping": Setting(max_num_seqs=2),
    "routed": Setting(replicas=2, routing="round-robin"),
    "routed and overlapping": Setting(max_num_seqs=2, replicas=2, routing="round-robin"),
}
every_kind = pytest.mark.parametrize("setting", KINDS.values(), ids=KINDS)
both_traces = pytest.mark.parametrize("tokens_per_symbol", [1, SIZE], ids=["tokens", "hash ids"])


def trace(prompts: list[list[int]], tokens_per_symbol: int) -> Trace:
    requests = [
        TraceRequest(array("i", prompt).tobytes(), len(prompt) * tokens_per_symbol) for prompt in prompts
    ]
    return Trace("made", TraceFormat.TOKENS, requests, tokens_per_symbol=tokens_per_symbol)


@every_kind
@both_traces
def test_what_is_refused_in_the_warm_up_does_not_count(setting: Setting, tokens_per_symbol: int) -> None:
    long, short = list(range(100)), [1, 2]
    traffic = trace([long, long, short, short, long], tokens_per_symbol)
    small = replace(setting, block_size=SIZE, capacity_blocks=8)
    assert replay_point(traffic, small).refused == 3
    counted = replay_point(traffic, small, warmup=2)
    assert counted.refused == 1
    assert [MissReason.SKIPPED in one.misses for one in counted.served] == [False, False, True]


@every_kind
@both_traces
def test_an_empty_prompt_is_counted_and_has_nothing_to_hit(setting: Setting, tokens_per_symbol: int) -> None:
    prompt = list(range(9))
    traffic = trace([[], prompt, [], [], prompt, []], tokens_per_symbol)
    outcome = replay_point(traffic, replace(setting, block_size=SIZE, routing="prefix"))
    assert [one.number for one in outcome.served] == list(range(6))
    empty = [one for one in outcome.served if one.number not in (1, 4)]
    assert [(one.num_prompt_tokens, one.num_hit_tokens, one.misses) for one in empty] == [(0, 0, {})] * 4
    assert outcome.refused == 0
    if setting.max_num_seqs is None:
        assert outcome.served[4].num_hit_tokens == 8 * tokens_per_symbol
