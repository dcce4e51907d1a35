"""Requests that run at once, and hold so many blocks that little is left to keep anything in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headstart.lab.explain.finding import Candidate, FindingKind
from headstart.lab.explain.traffic.case import Case

_SHARE_FOR_RUNNING = 0.5
"""Of the pool, at most, so that the rest can keep what nobody uses just now."""


def find_batch_contention(case: Case) -> Iterator[Candidate]:
    """What requests lose by running side by side, where their blocks take more than half of the pool.

    The price is the hits of the same pool with one request after the other, less those of the outcome.
    """
    setting, capacity = case.setting, case.setting.capacity_blocks
    if setting.max_num_seqs is None or setting.max_num_seqs < 2 or capacity is None:
        return
    held = _mean_blocks(case)
    demand = setting.max_num_seqs * held
    if demand <= _SHARE_FOR_RUNNING * capacity:
        return
    alone = case.gain(replace(setting, max_num_seqs=None))
    if not case.is_worth(alone.num_tokens):
        return
    fewer = max(1, int(_SHARE_FOR_RUNNING * capacity / held))
    what = (
        f"up to {setting.max_num_seqs:,} requests run at once and hold {held:,.0f} blocks each, "
        f"{demand / capacity:.1f} times the pool of {capacity:,}: against one request after the other that "
        f"costs {alone.num_tokens:,} tokens ({case.share(alone.num_tokens)} of all)"
    )
    if case.outcome.num_preemptions:
        what += f", and {case.outcome.num_preemptions:,} preemptions"
    fix = (
        f"--max-num-seqs {fewer} leaves half of the pool to what is cached, at the price of waiting; "
        "or a larger pool."
    )
    smaller = replace(setting, max_num_seqs=fewer)
    yield case.candidate(FindingKind.BATCH_CONTENTION, what, fix, alone, setting=smaller)


def _mean_blocks(case: Case) -> float:
    """That a request holds at its end: prompt and answer."""
    requests = [case.trace.requests[one.number] for one in case.outcome.served]
    size = case.setting.block_size
    return sum(-(-(one.num_prompt_tokens + (one.num_output_tokens or 0)) // size) for one in requests) / len(
        requests
    )
