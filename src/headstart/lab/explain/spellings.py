"""Same set, other order, and other white space or switches: what costs hits though nothing else is said."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median

from headstart.errors import RequestError
from headstart.lab.explain.cause import Cause
from headstart.lab.explain.excerpts import Excerpts
from headstart.lab.explain.finding import FindingKind
from headstart.lab.explain.parts import (
    Body,
    LineOrder,
    MessageOrder,
    Part,
    Spacing,
    Switches,
    ToolKeys,
    ToolOrder,
)
from headstart.lab.explain.retokenise import Retokeniser
from headstart.lab.explain.runs import num_common, tokens_of
from headstart.lab.traces.trace import Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class _Kind:
    part: Callable[[Iterable[Body]], Part]
    kind: FindingKind
    what: str
    fix: str


_ORDER = "The same set, in another order"
_KINDS = (
    _Kind(
        ToolOrder,
        FindingKind.SHUFFLED,
        f"{_ORDER}: the tools",
        "Sort the tools, by name say, before they are sent: do not build the list from a set or from "
        "answers that come in any order.",
    ),
    _Kind(
        ToolKeys,
        FindingKind.SHUFFLED,
        f"{_ORDER}: JSON keys in the tools",
        "Write JSON with sorted keys (sort_keys=True), or from one constant string.",
    ),
    _Kind(
        MessageOrder,
        FindingKind.SHUFFLED,
        f"{_ORDER}: example messages",
        "Send the examples in one fixed order; choose by something else than chance.",
    ),
    _Kind(
        LineOrder,
        FindingKind.SHUFFLED,
        f"{_ORDER}: lines (list items, examples, JSON keys) of a text",
        "Sort what comes from sets, dictionaries and searches before it is put into the prompt "
        "(sort_keys=True for JSON).",
    ),
    _Kind(
        Spacing,
        FindingKind.DRIFT,
        "The same text with other white space",
        "Normalise white space before sending: one line ending, no trailing blanks, one template for all "
        "callers.",
    ),
    _Kind(
        Switches,
        FindingKind.DRIFT,
        "Variables of the chat template that differ (thinking switches, dates)",
        "Send the same chat_template_kwargs with all requests that share a prompt; a switch at the head "
        "of the prompt makes two caches of one.",
    ),
)


def find_spellings(trace: Trace, retokeniser: Retokeniser, excerpts: Excerpts) -> list[Cause]:
    """What becomes equal to earlier prompts when each part is spelled as it was first."""
    bodies = [request.body for request in trace.requests if request.body is not None]
    return [
        cause for kind in _KINDS if (cause := _cause(kind, trace, bodies, retokeniser, excerpts)) is not None
    ]


def _cause(
    kind: _Kind, trace: Trace, bodies: list[Body], retokeniser: Retokeniser, excerpts: Excerpts
) -> Cause | None:
    settled = _settled(trace, kind.part(bodies), retokeniser)
    changed = [
        (one, tokens_of(one.symbols), tokens_of(other.symbols))
        for one, other in zip(trace.requests, settled.requests, strict=True)
        if one.symbols != other.symbols
    ]
    if not changed:
        return None
    positions = [num_common(old, new) for _, old, new in changed]
    first, _, _ = changed[0]
    at = int(median(positions))

    def change(other: Trace) -> Trace:
        """The first time it is done already."""
        if other is trace:
            return settled
        return _settled(
            other, kind.part(one.body for one in other.requests if one.body is not None), retokeniser
        )

    shown = [(one, place) for (one, _, _), place in zip(changed, positions, strict=True)][:2]
    return Cause(
        kind=kind.kind,
        what=f"{kind.what}. In {len(changed):,} of {len(trace.requests):,} requests, the first difference "
        f"usually at token {at:,} {excerpts.place(first, positions[0])}.",
        fix=kind.fix,
        position=at,
        change=change,
        evidence=tuple(excerpts.evidence(one, place, place + _SHOWN) for one, place in shown),
        rewrites_bodies=True,
    )


_SHOWN = 16
"""Tokens of the evidence."""


def _settled(trace: Trace, part: Part, retokeniser: Retokeniser) -> Trace:
    return replace(trace, requests=[_settle(request, part, retokeniser) for request in trace.requests])


def _settle(request: TraceRequest, part: Part, retokeniser: Retokeniser) -> TraceRequest:
    if request.body is None:
        return request
    body = part.settle(request.body)
    if body is request.body:
        return request
    try:
        tokens = retokeniser.tokens(body)
    except RequestError:
        return request
    return replace(request, body=body, symbols=tokens.tobytes(), num_prompt_tokens=len(tokens))
