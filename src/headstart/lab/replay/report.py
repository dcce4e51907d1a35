"""A replay's report: what it counts, in sentences, and all of it as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from headstart.lab.replay.costs import PRESET, CostModel
from headstart.lab.replay.outcome import OPTIMAL, Bounds, Outcome, Rates, ReplayReport
from headstart.lab.replay.overlapping import ANSWERS_TAKE_NO_ROOM
from headstart.lab.traces.trace import Trace

_RATES = (
    "Token rate: hit tokens of all prompt tokens, as vLLM counts.",
    (
        "Full hits: the share of requests of which all was cached but what must be computed: the last token, "
        "or with whole blocks what is behind the last block boundary before it. They predict first-token "
        "times."
    ),
    "Any hit: the share of requests with any hit at all, which flatters.",
    "Block rate: hit blocks of all whole blocks of the prompts; partly filled last blocks are left out.",
    "A prompt's last token never counts as a hit: it must be computed for its logits.",
)
_BOUNDS = (
    (
        "N: the whole blocks of all prompts, warm-up included. U: those that differ, each taken with all "
        "that precedes it in its namespace. (N - U)/N: the block rate over the whole trace that no cache can "
        "beat, since each block must be computed once. U/C: unique blocks over capacity; below 1 hardly "
        "anything need be evicted."
    ),
    "Unbounded: a cache that never evicts, in whole blocks, over the requests that count.",
)


def report_on(
    trace: Trace,
    outcomes: Sequence[Outcome],
    bounds: dict[int, Bounds],
    *,
    costs: CostModel = PRESET,
    warmup: int = 0,
) -> ReplayReport:
    """The report, with its definitions and notes.  ``bounds`` are by block size."""
    return ReplayReport(
        trace_name=trace.name,
        trace_format=trace.format,
        tokens_per_symbol=trace.tokens_per_symbol,
        num_requests=len(trace.requests),
        num_warmup=warmup,
        bounds=bounds,
        outcomes=list(outcomes),
        definitions=definitions(trace, outcomes, costs, warmup),
        notes=notes(trace, outcomes),
        num_skipped=len(trace.skipped),
    )


def definitions(trace: Trace, outcomes: Sequence[Outcome], costs: CostModel, warmup: int) -> list[str]:
    """What the rates mean, and what is left out, as sentences."""
    counted = len(trace.requests) - warmup
    if warmup:
        start = f"The first {warmup:,} requests fill the cache and do not count: the rates are of the last "
        start += f"{counted:,}, on a warm cache. Evicted blocks are those of the whole replay."
    else:
        start = f"All {counted:,} requests count, from an empty cache on: the cold start is in."
    sentences = [*_RATES, start, *_BOUNDS]
    if any(one.setting.policy == OPTIMAL for one in outcomes):
        sentences.append(
            "optimal: evicts what is used again last, knowing the future; no policy hits more whole "
            "blocks over the whole trace, warm-up included. Of its misses, what fills no whole block "
            "counts as cold."
        )
    if any(one.setting.max_num_seqs is not None for one in outcomes):
        when = "at the trace's times" if trace.has_times else "as soon as there is a seat"
        sentences.append(f"Requests come {when} and overlap, so many at once; what runs holds its blocks.")
        sentences += costs.describe()
    else:
        sentences.append("Each request is computed and done before the next comes: none waits or overlaps.")
    if any(one.setting.replicas > 1 for one in outcomes):
        sentences.append("Replicas share nothing; the capacity is that of each, and the rates are of all.")
    return sentences


def notes(trace: Trace, outcomes: Sequence[Outcome]) -> list[str]:
    """What is particular to this trace and these settings, as sentences."""
    found = list(trace.notes)
    size = trace.tokens_per_symbol
    if size > 1:
        found.append(
            f"This is a block view: the trace has hash ids, each for a block of {size:,} tokens and all "
            f"before it. Only multiples of {size:,} tokens can be replayed, and a prompt's last block "
            "counts as computed, for its last token. It takes a block of the cache, though it may be "
            "partly filled."
        )
        if any(one.setting.max_num_seqs is not None for one in outcomes):
            found.append(ANSWERS_TAKE_NO_ROOM)
    else:
        found += _on_answers(trace, overlap=any(one.setting.max_num_seqs is not None for one in outcomes))
    radix = any(one.setting.prefix_index == "radix" for one in outcomes)
    if size == 1 and radix and any(one.setting.policy == OPTIMAL for one in outcomes):
        found.append(
            "The radix index also hits parts of blocks, which the optimum of whole blocks does not count: "
            "its token rate may be the higher one."
        )
    refused = sorted({(one.setting.capacity_blocks or 0, one.refused) for one in outcomes if one.refused})
    found += [
        f"Refused, since they need more than {capacity:,} blocks: {count:,} of the requests (as skipped)."
        for capacity, count in refused
    ]
    if trace.skipped:
        shown = "; ".join(map(str, trace.skipped[:3]))
        more = len(trace.skipped) - 3
        found.append(
            f"Left out, since they could not be read: {len(trace.skipped):,} of the lines. {shown}"
            + (f"; and {more:,} more" if more > 0 else "")
        )
    return found


def _on_answers(trace: Trace, *, overlap: bool) -> Iterator[str]:
    num_known = sum(bool(request.output) for request in trace.requests)
    if num_known:
        yield "Answers that the trace has are cached behind their prompts, as an engine does."
    if overlap and num_known < len(trace.requests):
        yield (
            "Where requests overlap, answers that the trace does not have are made up, of tokens that no "
            "prompt has."
        )
    elif not num_known:
        yield "The trace has no answers: what an engine would cache of them is missing here."


def fields(report: ReplayReport) -> dict[str, Any]:
    """The report in JSON's types.  Rates are from 0 to 1; counts of misses are tokens."""
    return {
        "trace": report.trace_name,
        "format": str(report.trace_format),
        "tokens_per_symbol": report.tokens_per_symbol,
        "num_requests": report.num_requests,
        "num_warmup_requests": report.num_warmup,
        "num_skipped_lines": report.num_skipped,
        "definitions": report.definitions,
        "notes": report.notes,
        "bounds": [_bounds_fields(each) for each in report.bounds.values()],
        "rows": [_row(each, report.bounds[each.setting.block_size]) for each in report.outcomes],
    }


def _bounds_fields(bounds: Bounds) -> dict[str, Any]:
    return {
        "block_size": bounds.block_size,
        "num_blocks": bounds.num_blocks,
        "num_unique_blocks": bounds.num_unique_blocks,
        "reuse_bound": bounds.reuse_bound,
        "unbounded": _rates_fields(bounds.unbounded),
    }


def _row(outcome: Outcome, bounds: Bounds) -> dict[str, Any]:
    setting = outcome.setting
    capacity = setting.capacity_blocks
    return {
        "policy": setting.policy,
        "prefix_index": setting.prefix_index,
        "block_size": setting.block_size,
        "capacity_blocks": capacity,
        "capacity_share_of_unique": capacity / bounds.num_unique_blocks
        if capacity is not None and bounds.num_unique_blocks
        else None,
        "unique_over_capacity": None if capacity is None else bounds.pressure(capacity),
        "max_num_seqs": setting.max_num_seqs,
        "replicas": setting.replicas,
        "routing": setting.routing if setting.replicas > 1 else None,
        **_rates_fields(outcome.rates),
        "misses": {str(reason): count for reason, count in outcome.misses.items()},
        "mean_first_token_s": outcome.mean_first_token_s,
        "num_evicted_blocks": outcome.num_evicted_blocks,
        "num_preemptions": outcome.num_preemptions,
        "num_refused_requests": outcome.refused,
        "seconds": outcome.seconds,
    }


def _rates_fields(rates: Rates) -> dict[str, Any]:
    return asdict(rates)
