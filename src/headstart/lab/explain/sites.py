"""Sites: places between two stable texts where the prompts of many requests say different things."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from headstart.cache.tokens import TOKEN_BYTES
from headstart.lab.explain.runs import GRAM, Difference, find_run, grams, tokens_of
from headstart.lab.traces.trace import Trace, TraceRequest

_ANCHOR_WINDOW = 64
_SAMPLE = 48
"""So many requests of a site are looked at to learn its borders."""
_CHOICES = 6
_BYTES = GRAM * TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Pair:
    """A request, the earlier one that it was compared with, and one difference between them."""

    number: int
    other: int
    difference: Difference


@dataclass(frozen=True, slots=True)
class Site:
    """What lies between ``before`` and the first of ``afters``: runs of `GRAM` tokens.

    A shorter ``before`` is the beginning of the prompt.
    """

    before: bytes
    afters: tuple[bytes, ...]

    def locate(self, run: bytes) -> tuple[int, int] | None:
        """The span of tokens between them; None for a prompt that does not have both."""
        if len(self.before) < _BYTES:
            start = len(self.before) // TOKEN_BYTES if run.startswith(self.before) else None
        else:
            found = find_run(run, self.before)
            start = found + GRAM if found is not None else None
        if start is None:
            return None
        stops = [stop for after in self.afters if (stop := find_run(run, after, start)) is not None]
        return (start, min(stops)) if stops else None

    def without(self, request: TraceRequest) -> TraceRequest:
        """The request with what lies there moved to the end of its prompt."""
        span = self.locate(request.symbols)
        if span is None:
            return request
        run, (start, stop) = request.symbols, (place * TOKEN_BYTES for place in span)
        return replace(request, symbols=run[:start] + run[stop:] + run[start:stop])


def moved(trace: Trace, site: Site) -> Trace:
    """The trace with what varies at that site moved to the end of each prompt: no token is lost."""
    return replace(trace, requests=[site.without(request) for request in trace.requests])


def sites(trace: Trace, pairs: Iterable[Pair], least_tokens: int, most: int) -> list[tuple[Site, list[Pair]]]:
    """The places that the most equal text lies behind, dearest first, each with the pairs that show it.

    Differences are of one site if the same text follows: the gram with the smallest hash of those behind
    the difference stands for it, which does not change if the difference is a few tokens longer.
    """
    clusters: defaultdict[int, list[Pair]] = defaultdict(list)
    for pair in pairs:
        clusters[_anchor(trace, pair)].append(pair)
    found: dict[bytes, tuple[Site, list[Pair]]] = {}
    for cluster in sorted(clusters.values(), key=_weight, reverse=True)[: 2 * most]:
        site = _site(trace, cluster)
        if site is None:
            continue
        if site.before in found:  # one place, in front of several texts
            known, others = found[site.before]
            found[site.before] = (Site(site.before, (*known.afters, *site.afters)), others + cluster)
        elif not any(_overlap(trace, site, other, cluster) for other, _ in found.values()):
            found[site.before] = (site, cluster)
    return [one for one in found.values() if _weight(one[1]) >= least_tokens][:most]


def _weight(cluster: Sequence[Pair]) -> int:
    return sum(pair.difference.run for pair in cluster)


def _anchor(trace: Trace, pair: Pair) -> int:
    """What stands for the text behind a difference."""
    stop = pair.difference.stop
    tokens = tokens_of(trace.requests[pair.number].symbols)
    return int(grams(tokens[stop : stop + min(pair.difference.run, _ANCHOR_WINDOW)]).min())


def _site(trace: Trace, cluster: Sequence[Pair]) -> Site | None:
    """The borders that the most requests have, and of those the narrowest."""
    sample = cluster[:: -(-len(cluster) // _SAMPLE)]
    # Values may begin or end alike by chance, so the difference of a pair may be narrower than the site:
    # the one that begins first is always looked at.
    first = min(sample, key=lambda pair: pair.difference.start)
    befores = [_before(trace, pair) for pair in sample]
    afters = [_after(trace, pair) for pair in sample]
    choices = [
        Site(before, (after,))
        for before in dict.fromkeys([*_most_common(befores), _before(trace, first)])
        for after in _most_common(afters)
    ]
    runs = [trace.requests[number].symbols for pair in sample for number in (pair.number, pair.other)]
    best = max(choices, key=lambda site: _score(site, runs))
    return best if _score(best, runs)[0] else None


def _score(site: Site, runs: Sequence[bytes]) -> tuple[int, float]:
    spans = [span for run in runs if (span := site.locate(run)) is not None]
    return len(spans), -median(stop - start for start, stop in spans) if spans else 0.0


def _before(trace: Trace, pair: Pair) -> bytes:
    start = pair.difference.start * TOKEN_BYTES
    return trace.requests[pair.number].symbols[max(0, start - _BYTES) : start]


def _after(trace: Trace, pair: Pair) -> bytes:
    stop = pair.difference.stop * TOKEN_BYTES
    return trace.requests[pair.number].symbols[stop : stop + _BYTES]


def _most_common(runs: Iterable[bytes]) -> list[bytes]:
    return [run for run, _ in Counter(runs).most_common(_CHOICES)]


def _overlap(trace: Trace, site: Site, other: Site, cluster: Sequence[Pair]) -> bool:
    """Whether the two are one place, by most of the requests that have both."""
    spans = [
        (one, two)
        for pair in cluster[:_SAMPLE]
        if (one := site.locate(trace.requests[pair.number].symbols)) is not None
        and (two := other.locate(trace.requests[pair.number].symbols)) is not None
    ]
    same = sum(one[0] <= two[1] and two[0] <= one[1] for one, two in spans)
    return 2 * same > len(spans)
