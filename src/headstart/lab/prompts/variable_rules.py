"""Text that varies, in front of text that could be shared."""

from __future__ import annotations

from collections.abc import Iterator

from headstart.lab.explain.finding import FindingKind
from headstart.lab.prompts.body import Body, Part, Section
from headstart.lab.prompts.problem import Severity, Sharing, Spot
from headstart.lab.prompts.variables import Variable, find_variables

ENOUGH = 256
"""Characters behind a variable that are worth speaking of, where nobody says that they are shared."""

RULES_BY_KIND = {
    FindingKind.CLOCK: "HS001",
    FindingKind.UUID: "HS002",
    FindingKind.REQUEST_ID: "HS003",
    FindingKind.COUNTER: "HS004",
    FindingKind.USER_NAME: "HS005",
    FindingKind.OTHER_VARIABLE: "HS006",
}
NAMES_OF_KINDS = {
    FindingKind.CLOCK: "a date or time",
    FindingKind.UUID: "a UUID",
    FindingKind.REQUEST_ID: "an id of a request or session",
    FindingKind.COUNTER: "a counter",
    FindingKind.USER_NAME: "a user's name or address",
    FindingKind.OTHER_VARIABLE: "a text that looks generated",
}
_PLACES = {
    "tools": "in a tool's definition",
    "system": "in the system prompt",
    "developer": "in the developer message",
    "prompt": "in the prompt",
}


def variables(body: Body) -> Iterator[Spot]:
    """The first of each kind in each part, with what is lost behind it."""
    for part in body.parts:
        firsts: dict[FindingKind, list[Variable]] = {}
        for variable in find_variables(part.text):
            firsts.setdefault(variable.kind, []).append(variable)
        for kind, found in firsts.items():
            first = next((variable for variable in found if variable.certain), found[0])
            severity = _severity(body, part, first)
            if severity is not None:
                yield _spot(body, part, first, severity, len(found))


def sharing(body: Body) -> Sharing:
    """What can be shared now, and what if all that varies moves behind it."""
    spans = [
        (part.start + variable.start, part.start + variable.end)
        for part in body.parts
        if part.start is not None
        for variable in find_variables(part.text)
        if _severity(body, part, variable) is Severity.WARNING
    ]
    ruler, stable = body.ruler, body.ruler.before(body.stable_end)
    first = min((ruler.before(start) for start, _ in spans), default=None)
    varying = sum(max(1, ruler.before(end) - ruler.before(start)) for start, end in spans)
    now = stable if first is None else min(first, stable)
    return Sharing(ruler.total, first, now, max(now, stable - varying))


def _severity(body: Body, part: Part, variable: Variable) -> Severity | None:
    """None where it stands as far behind as it can."""
    behind = part.text[variable.end :].strip()
    worst = Severity.WARNING if variable.certain else Severity.INFO
    if body.is_single:
        return worst if len(behind) >= ENOUGH else None
    if part.section is Section.LAST:
        return None
    if part.start is not None and not body.text[part.start + variable.end : body.stable_end].strip(_MARKS):
        return None
    return worst if part.section is Section.HEAD else Severity.INFO


_MARKS = " \n\t.,;:!)]}\"'"


def _spot(body: Body, part: Part, first: Variable, severity: Severity, count: int) -> Spot:
    name, place = NAMES_OF_KINDS[first.kind], _PLACES.get(part.role, f"in an earlier {part.role} message")
    more = f", and {count - 1} more behind it" if count > 1 else ""
    sure = "" if first.certain else " (or a constant that looks like one)"
    if part.section is Section.HISTORY:
        fix = "fine if it stays as it is for the whole conversation; if each request writes it anew, drop it"
    elif body.is_single:
        fix = "put it behind everything that requests have in common, at the prompt's end"
    else:
        fix = "move it to the end of the last user message, or drop it"
    lost = position = None
    if part.start is not None:
        start, end = part.start + first.start, part.start + first.end
        lost, position = body.lost_behind(start, end), body.ruler.before(start)
    return Spot(
        rule=RULES_BY_KIND[first.kind],
        severity=severity,
        where=part.where,
        offset=first.start,
        what=f"{name}{sure} {place}{more}",
        fix=fix,
        excerpt=part.text[first.start : first.end],
        num_lost=lost,
        position=position,
    )
