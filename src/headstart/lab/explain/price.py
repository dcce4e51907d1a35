"""What each cause costs: how much further prompts reach once it is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headstart.lab.explain.cause import Cause
from headstart.lab.explain.finding import Candidate, Finding
from headstart.lab.explain.reach import Reach, reach
from headstart.lab.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class _Price:
    cause: Cause
    num_tokens: int
    num_requests: int
    needs: tuple[Cause, ...]
    """The causes in front of it without which its fix would bring little."""


def without(trace: Trace, causes: Iterable[Cause]) -> Trace:
    """The trace with these causes gone; what rewrites bodies comes first, for it makes the tokens anew."""
    for cause in sorted(causes, key=lambda cause: not cause.rewrites_bodies):
        trace = cause.change(trace)
    return trace


def priced(
    trace: Trace,
    causes: Sequence[Cause],
    *,
    warmup: int = 0,
    least_tokens: int = 1,
    advance: Callable[[], None] = lambda: None,
) -> list[Candidate]:
    """The causes that cost at least ``least_tokens``, with their price.

    They are taken away one after the other, in the order of the places where they do harm, and each is charged
    what that brings: so nothing is counted twice.  The price is that of an unbounded cache: what eviction costs
    is another finding's.
    """
    now = before = reach(trace)
    gone: list[Cause] = []
    prices: list[_Price] = []
    for cause in sorted(causes, key=lambda cause: cause.position):
        after = reach(without(trace, [*gone, cause]))
        tokens, requests = _gain(before, after, warmup)
        advance()
        if tokens < least_tokens:
            continue
        alone = tokens if not gone else _gain(now, reach(without(trace, [cause])), warmup)[0]
        prices.append(_Price(cause, tokens, requests, tuple(gone) if 2 * alone < tokens else ()))
        gone.append(cause)
        before = after
    counted = sum(request.num_prompt_tokens for request in trace.requests[warmup:])
    return [_candidate(trace, price, counted) for price in prices]


def _gain(before: Sequence[Reach], after: Sequence[Reach], warmup: int) -> tuple[int, int]:
    """Tokens, and how many requests gain any."""
    gains = [b.num_tokens - a.num_tokens for a, b in zip(before[warmup:], after[warmup:], strict=True)]
    return sum(gains), sum(gain > 0 for gain in gains)


def _candidate(trace: Trace, price: _Price, num_tokens: int) -> Candidate:
    cause, fix = price.cause, price.cause.fix
    if price.needs:
        fix += " It only helps once what stands in front of it is mended: the rate is that of all of these fixes."
    finding = Finding(
        kind=cause.kind,
        what=cause.what,
        fix=fix,
        num_tokens_lost=price.num_tokens,
        share_lost=price.num_tokens / num_tokens,
        num_requests=price.num_requests,
        evidence=cause.evidence,
    )
    return Candidate(finding, rewritten=lambda: without(trace, [*price.needs, cause]))
