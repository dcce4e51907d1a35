"""Text that varies from request to request: clocks, ids, counters, names.

One table of patterns, most of them with a label before the value, because prose and code are full of
numbers that never change: versions, prices, sizes, dates of history.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from headstart.lab.explain.finding import FindingKind


@dataclass(frozen=True, slots=True)
class Variable:
    """``text[start:end]`` is of this kind.

    It is ``certain`` if it has a label ("Today is …"), or is nothing a person writes by hand (a UUID);
    otherwise it may be a constant: a date of history, say.
    """

    kind: FindingKind
    start: int
    end: int
    certain: bool = True


def find_variables(text: str) -> list[Variable]:
    """All that looks variable in a text, in order; none overlap."""
    found = sorted(
        _candidates(text), key=lambda variable: (variable.start, -variable.end, not variable.certain)
    )
    kept: list[Variable] = []
    for variable in found:
        if not kept or variable.start >= kept[-1].end:
            kept.append(variable)
    return kept


def classify(text: str, before: str = "", after: str = "") -> FindingKind:
    """What a span is that differs between requests.

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
    return next((kind for kind, pattern in _ALONE if pattern.fullmatch(text)), FindingKind.OTHER_VARIABLE)


@dataclass(frozen=True, slots=True)
class _Pattern:
    """The value is the group named ``value``, or the whole match; ``accepts`` has the last word on it."""

    kind: FindingKind
    regex: re.Pattern[str]
    labelled: bool
    certain: bool
    accepts: Callable[[str], bool]


def _candidates(text: str) -> Iterator[Variable]:
    for pattern in _PATTERNS:
        group = "value" if "value" in pattern.regex.groupindex else 0
        for match in pattern.regex.finditer(text):
            start, end = match.span(group)
            lead = text[max(0, match.start() - _REACH) : match.start()]
            constant = _EXAMPLE.search(lead) or (not pattern.labelled and _CONSTANT.search(lead))
            if not constant and pattern.accepts(match[group]):
                yield Variable(pattern.kind, start, end, pattern.certain)


_REACH = 40
_EXAMPLE = re.compile(
    r"(?:\bexamples?\b|\be\.g\.|\bfor instance\b|\bsuch as\b|\bformat)[^\n.!?]{0,16}$", re.I
)
_CONSTANT = re.compile(
    r"(?:version|cut-?off|released?\b|copyright|©|since|founded|born|published|launched|effective|deprecated"
    r"|sha256[:-]|commit)[^\n]{0,16}$",
    re.I,
)


def _any(_value: str) -> bool:
    return True


def _has_digit(value: str) -> bool:
    return any(map(str.isdigit, value))


def _is_mixed_hex(value: str) -> bool:
    """Digits alone are a number, letters alone a word; both, and not of one character, a hash or an id."""
    return _has_digit(value) and any(map(str.isalpha, value)) and len(set(value)) > 4


def _is_serial(value: str) -> bool:
    """What follows ``req_``: a number, or letters and digits in turns."""
    return value.isdigit() or (_has_digit(value) and _changes(value) >= 2 and len(set(value)) > 3)


def _is_random(value: str) -> bool:
    """Letters of both cases and digits, changing as often as in base62; identifiers change far less."""
    kinds = [value.upper() != value, value.lower() != value, sum(map(str.isdigit, value)) >= 3]
    return all(kinds) and _changes(value) >= 0.45 * len(value)


def _changes(value: str) -> int:
    kinds = [1 if c.isdigit() else 2 if c.isupper() else 3 for c in value]
    return sum(a != b for a, b in pairwise(kinds))


def _is_no_role(value: str) -> bool:
    """Not ``support@…``, nor an address reserved for examples: those stand for nobody."""
    name, _, domain = value.lower().partition("@")
    return name not in _ROLES and not re.search(r"(?:^|\.)(?:example(?:\.\w+)?|test|invalid)$", domain)


def _is_address(value: str) -> bool:
    """Not one that is the same on all machines."""
    return value not in {"0.0.0.0", "127.0.0.1", "255.255.255.255", "8.8.8.8", "1.1.1.1"}  # noqa: S104 - a text


_ROLES = frozenset(
    "abuse admin billing careers contact feedback git hello help info legal mail marketing no-reply noreply "
    "office postmaster press privacy sales security service support team user username webmaster".split()
)
_MONTH = (
    r"(?:jan(?:uary|uar|vier)?|feb(?:ruary|ruar)?|février|mar(?:ch|s|zo)?|märz|apr(?:il)?|avril|abril|may|mai"
    r"|mayo|june?|juni|juin|junio|july?|juli|juillet|julio|aug(?:ust)?|août|agosto|sept?(?:ember|embre)?"
    r"|o[ck]t(?:ober|obre)?|nov(?:ember|embre)?|de[cz](?:ember)?|décembre|diciembre|enero|febrero|septiembre"
    r"|octubre|noviembre)\b\.?"
)
_WEEKDAY = (
    r"(?:mon|tue(?:s)?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b"
    r"|(?:mon|diens|donners|frei|sams|sonn)tag\b|mittwoch\b"
)
_YEAR = r"(?:19[7-9]\d|20\d\d)"
_ZONE = (
    r"(?:\s?(?:Z\b|[+-]\d\d:?\d\d\b|[ap]m\b|[ap]\.m\.|(?:UTC|GMT|CES?T|[ECMP][SD]T)\b(?:[+-]\d{1,2})?)){0,2}"
)
_MINUTE, _SECOND = r"(?:[01]?\d|2[0-3]):[0-5]\d", r":[0-5]\d(?:[.,]\d+)?"
_TIME = rf"{_MINUTE}(?:{_SECOND})?{_ZONE}"
_ISO_DAY = rf"{_YEAR}(?P<s>[-/.])(?:0?[1-9]|1[0-2])(?P=s)(?:0?[1-9]|[12]\d|3[01])"
_NUMBER_DAY = rf"(?:0?[1-9]|[12]\d|3[01])(?P<s>[./-])(?:0?[1-9]|[12]\d|3[01])(?P=s){_YEAR}"
_ENDS = r"(?![\w-]|[./]\d)"
_NAMED_DAY = (
    rf"(?:(?:{_WEEKDAY})[.,]?\s+)?(?:(?:the\s+)?\d{{1,2}}(?:st|nd|rd|th|\.)?(?:\s|-)(?:of\s+|de\s+)?{_MONTH}(?:,?\s|-)(?:de\s+)?"
    rf"|{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?,?\s(?:{_TIME}\s)?){_YEAR}\b"
)
_THEN = r"(?:T|,?\s+(?:at\s+|um\s+|à\s+)?)"
_FREE = r"(?<![\w./-])"  # not in the middle of a model's name, a path or a version
_NOW = (
    r"\b(?:today(?:['’]s)?(?:\s+date)?|(?:current|system|local|present)[ _-]?(?:date|day|time|datetime|timestamp"
    r"|year|month|week|date and time)|date|datetime|time|timestamp|now|it)\b[\"']?\s*(?:is(?:\s+now)?\b|[:=])\s*[\"'*`]*"
)
_CLOCK_WORDS = (
    rf"(?:(?:{_WEEKDAY})|{_MONTH}|{_TIME}|\d{{1,4}}(?:st|nd|rd|th)?\b|\b(?:the|of|at)\b|[ \t,./-])+"
)
_ID_LABEL = (
    r"\b(?:request|req|trace|span|session|correlation|conversation|chat|thread|message|transaction|event|run"
    r"|job|task|call|ticket|order|invocation|tenant|device|nonce|call[ _-]?sign|x-request)"
)
_IS = r"[\"']?\s*(?:[:=]|\bis\b)\s*[\"'`*#]*"
_NAME = r"[A-ZÀ-Þ][\w'’-]+"

_Row: TypeAlias = tuple[FindingKind, str, str, Callable[[str], bool]]

# Flags: l has a label of its own, u is uncertain, i ignores case.
_TABLE: tuple[_Row, ...] = (
    # 2026-12-01T12:20:52.123Z, 20261201T122052Z, 1.12.2026 um 12:20, 12/01/2026, 2026/12/01
    (FindingKind.CLOCK, rf"{_FREE}{_ISO_DAY}{_THEN}{_TIME}", "i", _any),
    (FindingKind.CLOCK, rf"{_FREE}{_YEAR}[01]\d[0-3]\dT?[0-2]\d[0-5]\d[0-5]\dZ?\b", "", _any),
    (FindingKind.CLOCK, rf"{_FREE}{_ISO_DAY}{_ENDS}", "u", _any),
    (FindingKind.CLOCK, rf"{_FREE}{_NUMBER_DAY}{_THEN}{_TIME}", "i", _any),
    (FindingKind.CLOCK, rf"{_FREE}{_NUMBER_DAY}{_ENDS}", "u", _any),
    # Tue, 01 Dec 2026 12:20:52 GMT, December 1st, 2026 at 14:03, 1. Dezember 2026
    (FindingKind.CLOCK, rf"\b{_NAMED_DAY}{_THEN}{_TIME}", "i", _any),
    (FindingKind.CLOCK, rf"\b(?:{_WEEKDAY})[.,]?\s+{_NAMED_DAY}", "i", _any),
    (FindingKind.CLOCK, rf"\b{_MONTH}\s+\d{{1,2}}\s+{_TIME}\s+{_YEAR}\b", "i", _any),
    (FindingKind.CLOCK, rf"\b{_NAMED_DAY}", "iu", _any),
    # Today is Tuesday, December 1; current time: 14:03; the year alone counts behind a label
    (FindingKind.CLOCK, rf"{_NOW}(?P<value>{_CLOCK_WORDS})(?<![\s,./-])", "il", _has_digit),
    (
        FindingKind.CLOCK,
        rf"\b(?:today is|it is|it's|day(?: of the week)?:)\s+(?P<value>{_WEEKDAY})",
        "il",
        _any,
    ),
    (FindingKind.CLOCK, rf"(?<![\w:.]){_MINUTE}{_SECOND}{_ZONE}(?![\w:])", "u", _any),
    # seconds, milliseconds or microseconds since 1970, of the years 2017 to 2033
    (FindingKind.CLOCK, r"(?<![\w.,$€£#+-])1[5-9]\d{8}(?:\d{3}){0,2}(?:\.\d+)?(?![\w-]|[.,]\d)", "", _any),
    (
        FindingKind.UUID,
        r"(?<![\w-])(?!0{8}-)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![\w-])",
        "i",
        _any,
    ),
    # req_01HZX…, chatcmpl-8f3k…, toolu_01A0…
    (
        FindingKind.REQUEST_ID,
        r"(?<![\w-])(?:req|request|chatcmpl|cmpl|msg|run|thread|call|sess|session|trace|span|resp|asst|toolu|conv|txn|evt|job"
        r"|gen|batch|cus|ord|tick)[_-](?P<value>[A-Za-z0-9]{6,})(?![\w-])",
        "",
        _is_serial,
    ),
    (
        FindingKind.REQUEST_ID,
        rf"{_ID_LABEL}(?:[ _-]?(?:id|uuid|number|no\.?))?{_IS}(?P<value>(?=[A-Za-z_-]{{0,40}}\d)(?=\d{{0,40}}[A-Za-z_-])[\w-]{{3,}}|\d{{5,}})",
        "il",
        _has_digit,
    ),
    (FindingKind.REQUEST_ID, rf"{_ID_LABEL}[ _-]?id{_IS}(?P<value>[\w-]{{3,}})", "il", _has_digit),
    (FindingKind.REQUEST_ID, rf"\b(?:id|ref|reference|nonce){_IS}(?P<value>[\w-]{{10,}})", "il", _is_serial),
    # a ULID, then hashes and other long hexadecimal ids
    (FindingKind.REQUEST_ID, r"(?<![\w-])[0-7][0-9A-HJKMNP-TV-Z]{25}(?![\w-])", "", _is_serial),
    (FindingKind.REQUEST_ID, r"(?<![\w:])(?:[0-9a-f]{16,}|[0-9A-F]{16,})(?!\w)", "", _is_mixed_hex),
    # Attempt: 3, turn 4 of 10, ticket #4711, remaining tokens: 3,120
    (
        FindingKind.COUNTER,
        r"(?<![\w-])(?:turn|attempt|retry|iteration|round|visit|step|message|request|call|query)"
        r"(?:\s+(?:number|no\.?|count))?[\"']?\s*(?:[:=]\s*#?|#)\s*(?P<value>\d+(?:\s*(?:of|/)\s*\d+)?)(?![\w.])",
        "il",
        _any,
    ),
    (
        FindingKind.COUNTER,
        r"\b(?:turn|attempt|retry|iteration|round|visit)\s+(?P<value>\d+\s*(?:of|/)\s*\d+)\b",
        "il",
        _any,
    ),
    (
        FindingKind.COUNTER,
        r"\b(?:this is|you are (?:now )?(?:in|on|at)|currently (?:in|on|at)?)\s+(?:your\s+|the\s+)?"
        r"(?:turn|attempt|retry|iteration|round|visit|request|message)\s+(?:number\s+)?#?(?P<value>\d+)\b",
        "il",
        _any,
    ),
    (
        FindingKind.COUNTER,
        r"\b(?:ticket|case|order|invoice|conversation|session|customer|visitor)\s+(?:no\.?\s*|number\s+)?#(?P<value>\d+)",
        "il",
        _any,
    ),
    (
        FindingKind.COUNTER,
        r"\b(?:(?:tokens|messages|turns|requests|attempts|calls|credits) (?:left|remaining|so far|used)|(?:remaining|unread)"
        r" \w+|(?:message|request|turn|visit|retry) ?count|counter)[\"']?\s*(?:[:=]|\bis\b)\s*(?P<value>\d[\d,]*)",
        "il",
        _any,
    ),
    # user: Ada Lovelace, username = ada42, the customer's name is Ada, ada@lovelace.org
    (
        FindingKind.USER_NAME,
        rf"\b(?i:user|customer|client|caller|patient|student|employee)[\"']?\s*[:=]\s*[\"'*]*"
        rf"(?P<value>{_NAME}(?: {_NAME}){{1,2}})(?=[\"'*]*[.,;)]?[ \t]*(?:\Z|\n(?!\s*(?i:assistant|ai|bot|agent|a):)))",
        "l",
        _any,
    ),
    (
        FindingKind.USER_NAME,
        rf"\b(?i:(?:user|customer|client|full|first|last|account|login|display)[ _-]?name){_IS}"
        rf"(?P<value>(?!(?i:string|str|name|the|a|an|required|optional|null|none|not|not_|true|false)\b)"
        rf"{_NAME}(?: {_NAME}){{0,2}}|[a-z][a-z0-9._-]*[0-9._-][a-z0-9._-]*[a-z0-9])(?![\w(])",
        "l",
        _any,
    ),
    (
        FindingKind.USER_NAME,
        rf"\b(?i:(?:(?:user|customer|client|caller|patient|student)['’]?s?|my|their|his|her) name is)\s+"
        rf"(?P<value>{_NAME}(?: {_NAME}){{0,2}})",
        "l",
        _any,
    ),
    (
        FindingKind.USER_NAME,
        rf"\b(?i:talking|speaking|chatting) (?:to|with)\s+(?:user\s+)?(?P<value>{_NAME}(?: {_NAME}){{0,2}})(?=\s*[.,;(\n]|$)",
        "l",
        _any,
    ),
    (
        FindingKind.USER_NAME,
        rf"\b(?:user|customer|client|account)[ _-]?id{_IS}(?P<value>[\w-]+)",
        "il",
        _has_digit,
    ),
    (FindingKind.USER_NAME, r"(?<![\w.+-])[\w.+-]+@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}\b", "u", _is_no_role),
    # addresses of machines, and what else only a generator writes
    (
        FindingKind.OTHER_VARIABLE,
        r"(?<![\w.-])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w-]|\.\d|/\d)",
        "u",
        _is_address,
    ),
    (
        FindingKind.OTHER_VARIABLE,
        r"(?<![\w:.])(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|(?:[0-9a-f]{1,4}:){2,6}(?::[0-9a-f]{1,4}){1,5})(?![\w:])",
        "iu",
        _any,
    ),
    (FindingKind.OTHER_VARIABLE, r"(?<![\w/+=])(?<!base64,)[A-Za-z0-9]{16,}(?![\w/+=])", "u", _is_random),
)
_PATTERNS = tuple(
    _Pattern(
        kind,
        re.compile(regex, re.I if "i" in flags else 0),
        labelled="l" in flags,
        certain="u" not in flags,
        accepts=accepts,
    )
    for kind, regex, flags, accepts in _TABLE
)

# What a differing span of its own says, when nothing around it told: here a false guess costs a word only.
_ALONE = (
    (FindingKind.CLOCK, re.compile(rf"\W*(?:{_WEEKDAY}|{_MONTH}|{_TIME}|{_YEAR}-?\d\d?)\W*", re.I)),
    (FindingKind.USER_NAME, re.compile(r"\s*@\w+\s*")),
)
