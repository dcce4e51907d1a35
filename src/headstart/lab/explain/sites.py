"""Sites: places between two stable texts where the prompts of many requests say different things."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

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
    """What lies between ``before`` and ``after``: runs of `GRAM` tokens that all of its requests have.

    A shorter ``before`` is the beginning of the prompt.
    """

    before: bytes
    after: bytes

    def locate(self, run: bytes) -> tuple[int, int] | None:
        """The span of tokens between the two; None for a prompt that lacks one of them."""
        if len(self.before) < _BYTES:
            start = len(self.before) // TOKEN_BYTES if run.startswith(self.before) else None
        else:
            found = find_run(run, self.before)
            start = found + GRAM if found is not None else None
        if start is None:
            return None
        stop = find_run(run, self.after, start)
        return (start, stop) if stop is not None else None

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
    found: list[tuple[Site, list[Pair]]] = []
    for cluster in sorted(clusters.values(), key=_weight, reverse=True):
        if _weight(cluster) < least_tokens or len(found) == most:
            break
        site = _site(trace, cluster)
        if site is not None and not any(_overlap(trace, site, other, cluster) for other, _ in found):
            found.append((site, cluster))
    return found


def _weight(cluster: Sequence[Pair]) -> int:
    return sum(pair.difference.run for pair in cluster)


def _anchor(trace: Trace, pair: Pair) -> int:
    """What stands for the text behind a difference."""
    stop = pair.difference.stop
    behind = tokens_of(trace.requests[pair.number].symbols)[stop : stop + min(pair.difference.run, _ANCHOR_WINDOW)]
    return int(grams(behind).min())


def _site(trace: Trace, cluster: Sequence[Pair]) -> Site | None:
    """The borders that the most requests have, and of those the narrowest."""
    sample = cluster[:: -(-len(cluster) // _SAMPLE)]
    befores: Counter[bytes] = Counter()
    afters: Counter[bytes] = Counter()
    for pair in sample:
        run, difference = trace.requests[pair.number].symbols, pair.difference
        start, stop = difference.start * TOKEN_BYTES, difference.stop * TOKEN_BYTES
        befores[run[max(0, start - _BYTES) : start]] += 1
        afters[run[stop : stop + _BYTES]] += 1
    first = min(sample, key=lambda pair: pair.difference.start)
    start = first.difference.start * TOKEN_BYTES
    befores[trace.requests[first.number].symbols[max(0, start - _BYTES) : start]] += 1
    runs = [trace.requests[number].symbols for pair in sample for number in (pair.number, pair.other)]
    best: tuple[int, float] | None = None
    chosen = None
    for before in _choices(befores, first.number, trace, start):
        for after, _ in afters.most_common(_CHOICES):
            site = Site(before, after)
            spans = [span for run in runs if (span := site.locate(run)) is not None]
            if not spans:
                continue
            score = (len(spans), -median(stop - start for start, stop in spans))
            if best is None or score > best:
                best, chosen = score, site
    return chosen


def _choices(befores: Counter[bytes], number: int, trace: Trace, start: int) -> list[bytes]:
    """The most common texts in front, and the one that stands in front of the earliest difference."""
    earliest = trace.requests[number].symbols[max(0, start - _BYTES) : start]
    return list(dict.fromkeys([*(before for before, _ in befores.most_common(_CHOICES)), earliest]))


def _overlap(trace: Trace, site: Site, other: Site, cluster: Sequence[Pair]) -> bool:
    """Whether the two are one place, by most of the requests that have both."""
    spans = [
        (one, two)
        for pair in cluster[:_SAMPLE]
        if (one := site.locate(trace.requests[pair.number].symbols)) is not None
        and (two := other.locate(trace.requests[pair.number].symbols)) is not None
    ]
    same = sum(one[0] <= two[1] and two[0] <= one[1] for one, two in spans)
    return bool(spans) and bool(np.greater(2 * same, len(spans)))
