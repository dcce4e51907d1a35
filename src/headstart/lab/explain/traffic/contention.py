"""Requests that run at once, and hold so many blocks that little is left to keep anything in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headstart.lab.explain.finding import Candidate, FindingKind
from headstart.lab.explain.traffic.case import Case

_SHARE_FOR_RUNNING = 0.5
"""Of the pool, at most, so that the rest can keep what nobody uses just now."""
_HELPS = 0.5
"""The share of the price that fewer requests at once must win back to be the advice."""


def find_batch_contention(case: Case) -> Iterator[Candidate]:
    """What requests lose by running side by side, where their blocks take more than half of the pool.

    The price is what the same pool hits with one request at a time, whose answers take the same room, less
    the hits of the outcome.  That can be nothing: blocks of running requests are those that were used last,
    and LRU would have kept most of them anyway.
    """
    setting, capacity = case.setting, case.setting.capacity_blocks
    if setting.max_num_seqs is None or setting.max_num_seqs < 2 or capacity is None:
        return
    held = _mean_blocks(case)
    demand = setting.max_num_seqs * held
    if demand <= _SHARE_FOR_RUNNING * capacity:
        return
    alone = case.gain(replace(setting, max_num_seqs=1))
    if not case.is_worth(alone.num_tokens):
        return
    what = (
        f"up to {setting.max_num_seqs:,} requests run at once and hold {held:,.0f} blocks each at their end, "
        f"{demand / capacity:.1f} times the pool of {capacity:,}: against one at a time that costs "
        f"{alone.num_tokens:,} tokens ({case.share(alone.num_tokens)} of all)"
    )
    if case.outcome.num_preemptions:
        what += f", and there are {case.outcome.num_preemptions:,} preemptions"
    fewer = replace(setting, max_num_seqs=max(1, int(_SHARE_FOR_RUNNING * capacity / held)))
    if fewer.max_num_seqs == 1 or case.gain(fewer).num_tokens >= _HELPS * alone.num_tokens:
        fix = (
            f"--max-num-seqs {fewer.max_num_seqs} leaves half of the pool to what is cached, at the price of "
            "waiting; or a larger pool."
        )
        yield case.candidate(FindingKind.BATCH_CONTENTION, what, fix, alone, setting=fewer)
        return
    fix = (
        f"a larger pool; --max-num-seqs {fewer.max_num_seqs}, which would leave half of it, wins little back."
    )
    yield case.candidate(FindingKind.BATCH_CONTENTION, what, fix, alone)


def _mean_blocks(case: Case) -> float:
    """That a request holds at its end: prompt and answer."""
    requests = [case.trace.requests[one.number] for one in case.outcome.served]
    size = case.setting.block_size
    lengths = [request.num_prompt_tokens + (request.num_output_tokens or 0) for request in requests]
    return sum(-(-length // size) for length in lengths) / len(requests)
