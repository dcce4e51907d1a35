"""Prompt templates: text with ``{placeholders}``, as f-strings, str.format, Mustache or Jinja write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from headstart.lab.explain.finding import FindingKind
from headstart.lab.prompts.body import Ruler
from headstart.lab.prompts.layout_rules import EXAMPLES
from headstart.lab.prompts.problem import Severity, Sharing, Spot
from headstart.lab.prompts.variable_rules import RULES_BY_KIND

_EXPRESSION = re.compile(
    r"""(?P<comment>\{\#.{0,4000}?\#\}|\{\{!.{0,4000}?\}\})
      | (?P<block>\{%-?.{0,2000}?%\}|\{\{[#/^>].{0,200}?\}\})
      | \{\{[{&~-]?\s*(?P<double>[A-Za-z_][^{}]{0,500}?)\s*[~-]?\}?\}\}
      | \$\{(?P<dollar>[^{}]{1,500})\}
      | (?<!\{)\{(?P<single>[A-Za-z_][\w.]*(?:\([^(){}]*\))?(?:\[[^\]{}]*\]|\.\w+(?:\([^(){}]*\))?)*)
        (?:![rsa])?(?P<format>:[^{}\n"]*)?\}
      | %\((?P<percent>\w+)\)[sdrif]
      | <%=?\s*(?P<erb>.{0,500}?)\s*%>""",
    re.VERBOSE | re.DOTALL,
)
_LOOP = re.compile(r"\{%-?\s*for\s+(?P<names>[\w, ]{1,200}?)\s+in\s+(?P<what>.{1,500}?)\s*-?%\}", re.DOTALL)
_UNSORTED = re.compile(r"(?:\.(?:items|keys|values)\(\)|\|\s*items\b|\bset\()")
_ENOUGH = 20  # characters of text behind a placeholder, from which it matters where it stands

Fate = Literal["constant", "documents", "question", "examples", "unknown"] | FindingKind

_WORDS: tuple[tuple[Fate, frozenset[str]], ...] = (
    ("examples", frozenset({"examples", "example", "shots", "fewshot", "demonstrations"})),
    (
        "constant",
        frozenset(
            {"instructions", "schema", "format", "tools", "tool", "persona", "assistant", "bot", "agent"}
            | {"company", "product", "brand", "bos", "eos", "version", "system", "rules", "policy"}
        ),
    ),
    (
        FindingKind.CLOCK,
        frozenset(
            {
                "date",
                "time",
                "now",
                "today",
                "datetime",
                "timestamp",
                "clock",
                "strftime",
                "utcnow",
                "weekday",
            }
            | {"day", "year", "month", "hour", "minute"}
        ),
    ),
    (FindingKind.UUID, frozenset({"uuid", "uuid4", "uuid1", "guid", "ulid"})),
    (
        FindingKind.COUNTER,
        frozenset({"turn", "attempt", "retry", "counter", "count", "iteration", "remaining"}),
    ),
    (FindingKind.OTHER_VARIABLE, frozenset({"random", "nonce", "seed", "ip", "token", "randint", "hex"})),
    (
        "documents",
        frozenset(
            {"context", "contexts", "document", "documents", "docs", "doc", "passages", "passage", "chunks"}
            | {"chunk", "sources", "results", "retrieved", "snippets", "excerpts", "knowledge"}
        ),
    ),
    (
        "question",
        frozenset(
            {"question", "query", "input", "message", "prompt", "text", "request", "utterance", "topic"}
        ),
    ),
)
_ID = re.compile(
    r"(?:request|req|trace|span|session|conversation|correlation|thread|run|message|chat|ticket|order)_?id\b"
)
_USER = re.compile(
    r"\b(?:user|customer|client|caller|patient|student|first|last|full)_?(?:(?:name|id|email|profile|info))?\b"
    r"|email|username"
)
_CONSTANT_NAME = re.compile(r"\b(?:tool|model|company|assistant|bot|agent|product|function)_?name")
_SAID = {
    FindingKind.CLOCK: "a date or time is put",
    FindingKind.UUID: "a UUID is put",
    FindingKind.REQUEST_ID: "an id of a request or session is put",
    FindingKind.COUNTER: "a counter is put",
    FindingKind.USER_NAME: "a user's name or data is put",
    FindingKind.OTHER_VARIABLE: "something random is put",
}
_BEHIND = "move it behind the text that stays the same, best to the template's end"


@dataclass(frozen=True, slots=True)
class Placeholder:
    """``text[start:end]`` is replaced by ``expression``; ``fate`` is what by, as far as its name tells."""

    start: int
    end: int
    expression: str
    fate: Fate


def find_placeholders(text: str) -> list[Placeholder]:
    """All placeholders, in order; comments and control blocks are none."""
    aliases = {
        name.strip(): loop["what"] for loop in _LOOP.finditer(text) for name in loop["names"].split(",")
    }
    found = []
    for match in _expressions(text):
        if match["comment"] or match["block"]:
            continue
        expression = next(filter(None, (match[name] for name in _GROUPS)), "")
        root = re.match(r"\w+", expression)
        known = aliases.get(root[0]) if root is not None else None
        fate = fate_of(known if known is not None else expression + (match["format"] or ""))
        found.append(Placeholder(match.start(), match.end(), expression, fate))
    return found


def _expressions(text: str) -> list[re.Match[str]]:
    """Where doubled braces or blocks are used, single braces are text."""
    found = list(_EXPRESSION.finditer(text))
    doubled = any(match["double"] or match["block"] for match in found)
    return [match for match in found if not (doubled and match["single"])]


_GROUPS = ("double", "dollar", "single", "percent", "erb")


def fate_of(expression: str) -> Fate:
    """What an expression will be, by the words it is made of."""
    spelled = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", expression).lower().replace(".", "_")
    if _CONSTANT_NAME.search(spelled):
        return "constant"
    if _ID.search(spelled):
        return FindingKind.REQUEST_ID
    words = set(re.findall(r"[a-z]+\d*", spelled))
    if words & {"user", "customer"} and words & _WORDS[-1][1]:
        return "question"  # user_input, user_message
    if _USER.search(spelled):
        return FindingKind.USER_NAME
    if "%" in spelled:
        return FindingKind.CLOCK  # {now:%Y-%m-%d}, whatever the name
    return next((fate for fate, known in _WORDS if words & known), "unknown")


def check_template(
    text: str, encode: Callable[[str], Sequence[int]] | None
) -> tuple[Ruler, list[Spot], Sharing]:
    """The problems of a prompt template, and how much of its own text can be shared."""
    placeholders = find_placeholders(text)
    static = _static(text)
    ruler = Ruler(static.text, encode)
    varying = [one for one in placeholders if one.fate not in ("constant", "examples")]
    spots = list(_spots(varying, static, ruler))
    first = min((static.position(one.start) for one in varying), default=None)
    if first is not None:
        spots += _examples(text, placeholders, static, ruler, first)
    now = ruler.total if first is None else ruler.before(first)
    sharing = Sharing(ruler.total, None if first is None else ruler.before(first), now, ruler.total)
    return ruler, spots, sharing


@dataclass(frozen=True, slots=True)
class _Static:
    """A template's own text, without what is filled in and without control blocks."""

    text: str
    cuts: list[tuple[int, int]]

    def position(self, offset: int) -> int:
        """Where a place of the template is in its own text."""
        return offset - sum(min(end, offset) - start for start, end in self.cuts if start < offset)


def _static(text: str) -> _Static:
    cuts = [match.span() for match in _expressions(text)]
    kept, at = [], 0
    for start, end in cuts:
        kept.append(text[at:start])
        at = end
    return _Static("".join([*kept, text[at:]]), cuts)


def _spots(varying: Sequence[Placeholder], static: _Static, ruler: Ruler) -> Iterator[Spot]:
    for one in varying:
        position = static.position(one.start)
        if len(static.text[position:].strip()) < _ENOUGH:
            return
        rule, severity, what, fix = _judged(one.fate)
        lost = ruler.total - ruler.before(position)
        yield Spot(rule, severity, (), one.start, what, fix, one.expression, lost, ruler.before(position))


def _judged(fate: Fate) -> tuple[str, Severity, str, str]:
    front = "in front of text that stays the same"
    if isinstance(fate, FindingKind):
        return RULES_BY_KIND[fate], Severity.WARNING, f"{_SAID[fate]} {front}", _BEHIND
    if fate == "documents":
        fix = "put the instructions first, then the documents, then the question"
        return "HS302", Severity.WARNING, f"retrieved documents are put {front}", fix
    if fate == "question":
        return "HS006", Severity.WARNING, f"what a user asks is put {front}", _BEHIND
    return "HS006", Severity.INFO, f"something is put {front}", f"if it varies, {_BEHIND}"


def _examples(
    text: str, placeholders: Sequence[Placeholder], static: _Static, ruler: Ruler, first: int
) -> Iterator[Spot]:
    """Examples, written out or filled in, behind the first thing that varies."""
    starts = [one.start for one in placeholders if one.fate == "examples"]
    written = EXAMPLES.search(text)
    starts += [written.start()] if written is not None else []
    behind = [start for start in starts if static.position(start) > first]
    if behind:
        position = ruler.before(static.position(min(behind)))
        yield Spot(
            "HS301",
            Severity.WARNING,
            (),
            min(behind),
            "examples behind something that varies: they are the same each time, and never shared",
            "put instructions and examples first, and what varies behind them",
            None,
            ruler.total - position,
            position,
        )


def unsorted_loops(text: str) -> Iterator[Spot]:
    """Loops over a mapping or a set in whatever order it has."""
    for loop in _LOOP.finditer(text):
        if _UNSORTED.search(loop["what"]) and not re.search(r"\|\s*(?:dict)?sort\b", loop["what"]):
            yield Spot(
                "HS104",
                Severity.INFO,
                (),
                loop.start(),
                "a loop over a mapping or set in whatever order its writer gave it",
                "iterate `… | dictsort`, so that the same entries are always the same text",
                loop["what"],
            )
