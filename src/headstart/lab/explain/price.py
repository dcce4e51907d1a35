"""What each cause costs: how much less must be computed once it is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from headstart.lab.explain.cause import Cause
from headstart.lab.explain.finding import Candidate, Finding
from headstart.lab.explain.reach import reach
from headstart.lab.traces.trace import Trace

_HIDDEN = 0.5
"""What brings less than this share of its price alone is hidden behind other causes."""
_MOST = 0.9
"""What still brings this share without one of them does not need that one."""


def without(trace: Trace, causes: Iterable[Cause]) -> Trace:
    """The trace with these causes gone; what rewrites bodies comes first, for it makes the tokens anew."""
    for cause in sorted(causes, key=lambda cause: not cause.rewrites_bodies):
        trace = cause.change(trace)
    return trace


def priced(
    trace: Trace,
    causes: Iterable[Cause],
    *,
    warmup: int = 0,
    least_tokens: int = 1,
    advance: Callable[[], None] = lambda: None,
) -> list[Candidate]:
    """The causes that cost at least ``least_tokens``, with their price, and those that hide them.

    They are taken away one after the other, in the order of the places where they do harm, and each is
    charged what that brings: so nothing is counted twice.  The price is that of an unbounded cache: what
    eviction costs is another finding's.
    """
    reaches = _Reaches(trace, sorted(causes, key=lambda cause: cause.position), warmup, advance)
    prices = reaches.prices(least_tokens)
    worth = [price for price in prices if price.num_tokens >= least_tokens]
    told = [replace(price, needs=reaches.needs(price)) for price in worth]
    needed = {number for price in told for number in price.needs}
    told += [price for price in prices if price.number in needed and price not in worth]
    counted = sum(request.num_prompt_tokens for request in trace.requests[warmup:])
    return [_candidate(trace, price, reaches.causes, counted, hides=price.number in needed) for price in told]


@dataclass(frozen=True, slots=True)
class _Price:
    """Of the cause with this ``number``, once those ``before`` it are gone; all are numbers of causes."""

    number: int
    before: tuple[int, ...]
    num_tokens: int
    num_requests: int
    needs: tuple[int, ...] = ()


class _Reaches:
    """What prompts lack without some of the causes; each set of them is tried once."""

    def __init__(
        self, trace: Trace, causes: Sequence[Cause], warmup: int, advance: Callable[[], None]
    ) -> None:
        self.causes = causes
        self._trace = trace
        self._warmup = warmup
        self._advance = advance
        self._known: dict[tuple[int, ...], list[int]] = {}

    def prices(self, most_harm: int) -> list[_Price]:
        """What each brings after those before it; some bring nothing until others are gone.

        Left out is what costs ``most_harm`` tokens or more: it is what lets prompts meet, too.
        """
        gone: tuple[int, ...] = ()
        found = []
        for number in range(len(self.causes)):
            gains = self._gains(gone, number)
            if sum(gains) > -most_harm:
                found.append(_Price(number, gone, max(0, sum(gains)), sum(gain > 0 for gain in gains)))
                gone = (*gone, number)
        return found

    def needs(self, price: _Price) -> tuple[int, ...]:
        """Those before it without whose going its own would bring little."""
        if sum(self._gains((), price.number)) >= _HIDDEN * price.num_tokens:
            return ()
        needs = price.before
        for number in price.before:
            fewer = tuple(one for one in needs if one != number)
            if sum(self._gains(fewer, price.number)) >= _MOST * price.num_tokens:
                needs = fewer
        return needs

    def _gains(self, gone: tuple[int, ...], number: int) -> list[int]:
        """Tokens that need not be computed of each request without that one, too.

        What a cause added or took away may make a prompt longer, so hits are not compared: reasoning that
        comes back is a hit, and nobody had lost it.
        """
        before, after = self._rest(gone), self._rest(tuple(sorted((*gone, number))))
        return [a - b for a, b in zip(before, after, strict=True)]

    def _rest(self, gone: tuple[int, ...]) -> list[int]:
        """What is to be computed of each request."""
        if gone not in self._known:
            trace = without(self._trace, [self.causes[number] for number in gone])
            found = list(zip(trace.requests, reach(trace), strict=True))[self._warmup :]
            self._known[gone] = [request.num_symbols - one.num_tokens for request, one in found]
            self._advance()
        return self._known[gone]


def _candidate(
    trace: Trace, price: _Price, causes: Sequence[Cause], num_tokens: int, *, hides: bool
) -> Candidate:
    cause, needs = causes[price.number], [causes[number] for number in price.needs]
    fix = cause.fix
    if hides:
        fix += " Mend this first: what it hides is charged to the findings behind it."
    if needs:
        kinds = " and ".join(f"{one.kind} at token {int(one.position):,}" for one in needs)
        fix += f" This helps only once what stands in front of it ({kinds}) is mended, too."
    finding = Finding(
        kind=cause.kind,
        what=cause.what,
        fix=fix,
        num_tokens_lost=price.num_tokens,
        share_lost=price.num_tokens / num_tokens,
        num_requests=price.num_requests,
        evidence=cause.evidence,
    )
    return Candidate(finding, rewritten=lambda: without(trace, [*needs, cause]))
