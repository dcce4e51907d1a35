"""Small traces and reports of replays, as the lab's tests need them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from headstart.cache.reasons import MissReason
from headstart.lab.replay.outcome import Bounds, Outcome, Rates, ReplayReport, Served, Setting
from headstart.lab.replay.replay import replay
from headstart.lab.traces.trace import Trace, TraceFormat, TraceRequest

_COLD = {MissReason.COLD: 1}


def trace_of(
    prompts: Sequence[Sequence[int]], *, name: str = "small.jsonl", tokens_per_symbol: int = 1
) -> Trace:
    """A trace of these prompts, one a second, on the lines 1 and on."""
    requests = [
        TraceRequest(
            array("i", prompt).tobytes(), len(prompt) * tokens_per_symbol, float(at), line=at + 1, file=name
        )
        for at, prompt in enumerate(prompts)
    ]
    kind = TraceFormat.MOONCAKE if tokens_per_symbol > 1 else TraceFormat.TOKENS
    return Trace(name, kind, requests, tokens_per_symbol)


def outcome_of(
    *hits: tuple[int, int],
    misses: Mapping[MissReason, int] | None = None,
    refused: int = 0,
    policy: str = "lru",
    capacity: int | None = 100,
    block_size: int = 16,
) -> Outcome:
    """An outcome in which each request of so many prompt tokens hit so many, for the same reasons."""
    served = [
        Served(number, tokens, hit, tokens - 1, dict(misses or _COLD))
        for number, (tokens, hit) in enumerate(hits)
    ]
    return Outcome(Setting(policy, "hash", block_size, capacity), served, refused=refused)


def bounds_of(trace: Trace, block_size: int) -> Bounds:
    """The bounds by the book: all beginnings of whole blocks, as a list and as a set."""
    step = block_size // trace.tokens_per_symbol * 4
    blocks = [
        (request.namespace, request.symbols[:end])
        for request in trace.requests
        for end in range(step, len(request.symbols) + 1, step)
    ]
    unbounded = replay(trace, Setting("lru", "hash", block_size))
    return Bounds(block_size, len(blocks), len(set(blocks)), unbounded.rates)


def unbounded_at(rate: float, block_size: int = 16) -> Bounds:
    """Bounds of a trace of which a cache that never evicts hits so much."""
    rates = Rates(100, 1000, round(1000 * rate), rate, rate, rate, rate)
    return Bounds(block_size, 1000, round(1000 * (1 - rate)), rates)


def report_of(trace: Trace, settings: Sequence[Setting], *, warmup: int = 0) -> ReplayReport:
    """The report of replaying ``trace`` with these settings."""
    outcomes = [replay(trace, setting, warmup=warmup) for setting in settings]
    sizes = sorted({setting.block_size for setting in settings})
    return ReplayReport(
        trace.name,
        str(trace.format),
        trace.tokens_per_symbol,
        len(trace.requests),
        warmup,
        {size: bounds_of(trace, size) for size in sizes},
        outcomes,
        ["Token rate: hit tokens of all prompt tokens, as vLLM counts.", "The cold start is in."],
        ["This is a note."],
    )
