"""Text that varies, in front of text that could be shared."""

from __future__ import annotations

from collections.abc import Iterator

from headstart.lab.explain.finding import FindingKind
from headstart.lab.prompts.body import Body, Part, Section
from headstart.lab.prompts.problem import Severity, Sharing, Spot
from headstart.lab.prompts.variables import Variable

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
_FIX = "move it to the end of the last user message, or drop it"
_FIXES: dict[str, str] = {
    "tools": "take it out of the definition; if the model must know it, say it in the last user message",
    FindingKind.USER_NAME: "move it to the end of the system prompt, or into the first user message",
}
_PLACES = {
    "tools": "in a tool's definition",
    "system": "in the system prompt",
    "developer": "in the developer message",
    "prompt": "in the prompt",
}


def variables(body: Body) -> Iterator[Spot]:
    """The first of each kind in each part, with what is lost behind it."""
    for part, all_ in body.found:
        by_kind: dict[FindingKind, list[tuple[Severity, Variable]]] = {}
        for variable in all_:
            severity = _severity(body, part, variable)
            if severity is not None:
                by_kind.setdefault(variable.kind, []).append((severity, variable))
        for judged in by_kind.values():
            severity, first = max(judged, key=lambda one: one[0].rank)  # the first one of the worst
            yield _spot(body, part, first, severity, len(judged))


def sharing(body: Body) -> Sharing:
    """What can be shared now, and what if all that varies moves behind it."""
    ruler, spans, end = body.ruler, [], body.stable_end
    for part, found in body.found:
        shared = body.is_single or part.section is Section.HEAD
        for variable in found if part.start is not None and shared else ():
            start = (part.start or 0) + variable.start
            severity = _severity(body, part, variable)
            if severity is Severity.WARNING:
                spans.append((start, start + variable.end - variable.start))
            elif severity is None and variable.certain:
                end = min(end, start)  # it stands right, behind all that is shared
    stable = ruler.before(end)
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
    if not part.text[variable.end :].strip(_MARKS) and not _is_followed(body, part):
        return None
    return worst if part.section is Section.HEAD else Severity.INFO


def _is_followed(body: Body, part: Part) -> bool:
    """Whether the prompt has another text between this part and the last user's message."""
    start = part.start if part.start is not None else 0
    return any(other.text.strip() and start < (other.start or 0) < body.stable_end for other in body.parts)


_MARKS = " \n\t.,;:!)]}\"'"


def _spot(body: Body, part: Part, first: Variable, severity: Severity, count: int) -> Spot:
    name = NAMES_OF_KINDS[first.kind]
    role = "prompt" if body.is_single else part.role
    place = _PLACES.get(role, f"in an earlier {role} message")
    more = f", and {count - 1} more in the same text" if count > 1 else ""
    sure = "" if first.certain else " (or a constant that looks like one)"
    if part.section is Section.HISTORY:
        fix = "fine if it stays as it is for the whole conversation; if each request writes it anew, drop it"
    elif body.is_single:
        fix = "put it behind everything that requests have in common, at the prompt's end"
    else:
        fix = _FIXES.get(part.role if part.role == "tools" else first.kind, _FIX)
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
