"""Finding text that varies from request to request: clocks, ids, counters, names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headstart.lab.explain.finding import FindingKind
from headstart.lab.prompts.patterns import ALONE, CONSTANT, EXAMPLE, PATTERNS, Pattern

_REACH = 40  # characters before a value that say whether it is an example or a fact


@dataclass(frozen=True, slots=True)
class Variable:
    """``text[start:end]`` is of this kind.

    It is ``certain`` if it has a label ("Today is …"), or is nothing that a person writes by hand (a UUID);
    otherwise it may be a constant: a date of history, say.
    """

    kind: FindingKind
    start: int
    end: int
    certain: bool = True


def find_variables(text: str) -> list[Variable]:
    """All that looks variable in a text, in order; none overlap."""
    found = [variable for pattern in PATTERNS for variable in _matches(pattern, text)]
    found.sort(key=lambda variable: (variable.start, -variable.end, not variable.certain))
    kept: list[Variable] = []
    for variable in found:
        if not kept or variable.start >= kept[-1].end:
            kept.append(variable)
    return kept


def classify(text: str, before: str = "", after: str = "") -> FindingKind:
    """What a span is that differs between requests; ``OTHER_VARIABLE`` if nothing tells.

    ``before`` and ``after`` are some characters around it, which may hold its label, or the rest of a value
    of which only this part differs.
    """
    start, end = len(before), len(before) + len(text)
    overlaps = [
        (min(end, variable.end) - max(start, variable.start), variable.kind)
        for variable in find_variables(before + text + after)
        if variable.start < end and start < variable.end
    ]
    if overlaps:
        return max(overlaps, key=lambda overlap: overlap[0])[1]
    return next((one.kind for one in ALONE if one.regex.fullmatch(text)), FindingKind.OTHER_VARIABLE)


def _matches(pattern: Pattern, text: str) -> Iterator[Variable]:
    for match in pattern.regex.finditer(text):
        lead = text[max(0, match.start() - _REACH) : match.start()]
        constant = EXAMPLE.search(lead) or (pattern.trust != "labelled" and CONSTANT.search(lead))
        if not constant and pattern.accepts(match[pattern.group]):
            yield Variable(pattern.kind, *match.span(pattern.group), certain=pattern.trust != "unsure")
