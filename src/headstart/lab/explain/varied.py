"""What varies in front of text that does not: clocks, ids, names, counters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from statistics import median

from headstart.cache.tokens import TOKEN_BYTES
from headstart.lab.explain.cause import Cause
from headstart.lab.explain.excerpts import Excerpts
from headstart.lab.explain.finding import Evidence, FindingKind
from headstart.lab.explain.sites import Pair, Site, moved, sites
from headstart.lab.prompts.variables import classify
from headstart.lab.traces.trace import Trace

_MOST_SITES = 8
_JUDGED = 24
"""So many values of a site are looked at to say what it is."""
_NUMBER = re.compile(r"\W*\d+\W*")
_DATE_LINE = re.compile(r"(?:Cutting Knowledge Date|Today Date|Current Date):[^\n]*$", re.IGNORECASE)

_MOVE = "move it behind the stable text: to the end of the system prompt, or into the last user message"
_NAMES = {
    FindingKind.CLOCK: "a date or time",
    FindingKind.UUID: "a UUID",
    FindingKind.REQUEST_ID: "a request id or hash",
    FindingKind.USER_NAME: "a user's name or address",
    FindingKind.COUNTER: "a counter",
    FindingKind.DRIFT: "white space or a date line of the template",
}
_FIXES = {
    FindingKind.CLOCK: f"{_MOVE.capitalize()}; or coarsen it (a date without the time is the same all day).",
    FindingKind.UUID: f"Leave it out: no model needs it. Or {_MOVE}.",
    FindingKind.REQUEST_ID: "Leave it out, or send it as a header or metadata: no model needs it. Or "
    f"{_MOVE}.",
    FindingKind.USER_NAME: f"{_MOVE.capitalize()}.",
    FindingKind.COUNTER: f"{_MOVE.capitalize()}; or leave it out.",
    FindingKind.DRIFT: "Write it the same way each time: pin what the template writes (date_string in "
    "chat_template_kwargs), and build prompts from one template.",
    FindingKind.OTHER_VARIABLE: "Put the text that all requests share first, and what differs behind it.",
}


def find_varied(trace: Trace, pairs: Iterable[Pair], excerpts: Excerpts, least_tokens: int) -> list[Cause]:
    """The places that vary in front of at least ``least_tokens`` tokens of equal text, all requests told.

    Other messages are another conversation, and not a part of a prompt that could stand elsewhere.
    """
    within = [pair for pair in pairs if not _spans_messages(trace, pair, excerpts)]
    return [
        _cause(trace, site, cluster, excerpts)
        for site, cluster in sites(trace, within, least_tokens, _MOST_SITES)
    ]


def _spans_messages(trace: Trace, pair: Pair, excerpts: Excerpts) -> bool:
    there = pair.difference
    return excerpts.has_markup(
        trace.requests[pair.number].symbols, there.start, there.stop
    ) or excerpts.has_markup(trace.requests[pair.other].symbols, there.other_start, there.other_stop)


def _cause(trace: Trace, site: Site, cluster: Sequence[Pair], excerpts: Excerpts) -> Cause:
    found = [
        (number, span)
        for number, request in enumerate(trace.requests)
        if (span := site.locate(request.symbols)) is not None
    ]
    values = [
        trace.requests[number].symbols[start * TOKEN_BYTES : stop * TOKEN_BYTES]
        for number, (start, stop) in found
    ]
    changes = 1 + sum(one != other for one, other in pairwise(values))
    positions = [start for _, (start, _) in found]
    sizes = [stop - start for _, (start, stop) in found]
    kind = _kind(trace, found, excerpts)
    name = _NAMES.get(kind) or (
        f"text of {_span_words(sizes)}" if max(sizes) else "what stands in front of equal text"
    )
    at = "token" if min(positions) == max(positions) else "about token"
    place = excerpts.place(trace.requests[found[0][0]], found[0][1][0])
    behind = int(median(pair.difference.run for pair in cluster))
    return Cause(
        kind=kind,
        what=f"{name[0].upper()}{name[1:]} at {at} {int(median(positions)):,} {place} differs in "
        f"{changes / len(values):.0%} of {len(values):,} requests, in front of about {behind:,} equal "
        "tokens.",
        fix=_FIXES[kind],
        position=median(positions),
        change=partial(moved, site=site),
        evidence=_evidence(trace, found, values, excerpts),
    )


def _span_words(sizes: Sequence[int]) -> str:
    least, most = min(sizes), max(sizes)
    return f"{most} tokens" if least == most else f"{least} to {most} tokens"


def _kind(trace: Trace, found: Sequence[tuple[int, tuple[int, int]]], excerpts: Excerpts) -> FindingKind:
    """What most of the values are."""
    kinds: Counter[FindingKind] = Counter()
    texts = []
    for number, (start, stop) in found[:: -(-len(found) // _JUDGED)]:
        before, text, after = excerpts.around(trace.requests[number].symbols, start, stop)
        texts.append(text)
        kinds[_kind_of(text, before, after)] += 1
    kind = max(kinds, key=lambda one: (kinds[one], one is not FindingKind.OTHER_VARIABLE))
    if kind is FindingKind.OTHER_VARIABLE and all(map(_NUMBER.fullmatch, texts)):
        return FindingKind.COUNTER
    return kind


def _kind_of(text: str, before: str, after: str) -> FindingKind:
    if text.isspace() or _DATE_LINE.search(before):
        return FindingKind.DRIFT
    return classify(text, before, after)


def _evidence(
    trace: Trace,
    found: Sequence[tuple[int, tuple[int, int]]],
    values: Sequence[bytes],
    excerpts: Excerpts,
) -> tuple[Evidence, ...]:
    """The first request, and the first one that has another value."""
    other = next((index for index, value in enumerate(values) if value != values[0]), None)
    shown = [0] if other is None else [0, other]
    return tuple(
        excerpts.evidence(trace.requests[number], *span) for number, span in (found[index] for index in shown)
    )
