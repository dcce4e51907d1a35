"""The table of what varies from request to request, as regular expressions.

Most rows want a label before the value, because prose and code are full of numbers that never change:
versions, prices, sizes, dates of history.  Expressions are verbose ones: blanks count within brackets only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from headstart.lab.explain.finding import FindingKind

Trust = Literal["labelled", "generated", "unsure"]
"""Why a match is believed: its label says so; nobody writes such by hand; or it may be a constant as well."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The value is the group named ``value``, or the whole match; ``accepts`` has the last word on it."""

    kind: FindingKind
    trust: Trust
    regex: re.Pattern[str]
    accepts: Callable[[str], bool]

    @property
    def group(self) -> str | int:
        """Where the value stands in a match."""
        return "value" if "value" in self.regex.groupindex else 0


def _row(
    kind: FindingKind,
    trust: Trust,
    regex: str,
    *,
    cased: bool = False,
    accepts: Callable[[str], bool] = bool,
) -> Pattern:
    return Pattern(kind, trust, re.compile(regex, re.VERBOSE | (0 if cased else re.IGNORECASE)), accepts)


def _has_digit(value: str) -> bool:
    return any(map(str.isdigit, value))


def _is_mixed_hex(value: str) -> bool:
    """Digits alone are a number and letters alone a word; both, of several characters, a hash or an id."""
    return _has_digit(value) and any(map(str.isalpha, value)) and len(set(value)) > 4


def _is_serial(value: str) -> bool:
    """What follows ``req_``: a number, or letters and digits in turns."""
    return value.isdigit() or (_has_digit(value) and _num_changes(value) >= 2 and len(set(value)) > 3)


def _is_random(value: str) -> bool:
    """Letters of both cases and digits, changing as often as in base62; identifiers change far less."""
    mixed = value.upper() != value != value.lower() and sum(map(str.isdigit, value)) >= 3
    return mixed and _num_changes(value) >= 0.45 * len(value)


def _num_changes(value: str) -> int:
    kinds = [1 if c.isdigit() else 2 if c.isupper() else 3 for c in value]
    return sum(a != b for a, b in pairwise(kinds))


def _is_personal(value: str) -> bool:
    """Not ``support@…``, nor a domain reserved for examples: those stand for nobody."""
    name, _, domain = value.lower().partition("@")
    return not _ROLES.fullmatch(name) and not re.search(
        r"(?:^|\.)(?:example(?:\.\w+)?|test|invalid)$", domain
    )


def _is_someones(value: str) -> bool:
    """Not an address that means the same everywhere."""
    return value not in {"0.0.0.0", "127.0.0.1", "255.255.255.255", "8.8.8.8", "1.1.1.1"}  # noqa: S104


_ROLES = re.compile(
    r"""abuse|admin|billing|careers|contact|feedback|git|hello|help|info|legal|mail|marketing|no-?reply|office
    |postmaster|press|privacy|sales|security|service|support|team|user|username|webmaster""",
    re.VERBOSE,
)

# Clocks, in English, German, French and Spanish.
_MONTH = r"""(?:
    jan(?:uary|uar|vier)? | feb(?:ruary|ruar)? | février | mar(?:ch|s|zo)? | märz | apr(?:il)? | avril | abril
  | mayo? | mai | june? | juni[no]? | juin | july? | juli[o]? | juillet | aug(?:ust)? | août | agosto
  | sept?(?:ember|embre)? | o[ck]t(?:ober|obre)? | nov(?:ember|embre)? | de[cz](?:ember)? | décembre | enero
  | febrero | septiembre | octubre | noviembre | diciembre
)\b\.?"""
_WEEKDAY = r"""(?:
    (?: mon | tues? | wed(?:nes)? | thu(?:rs)? | fri | sat(?:ur)? | sun )(?:day)?
  | (?: mon | diens | donners | frei | sams | sonn )tag | mittwoch
)\b"""
_YEAR = r"(?:19[7-9]\d|20\d\d)"
_MONTH_NUMBER, _DAY_NUMBER = r"(?:0?[1-9]|1[0-2])", r"(?:0?[1-9]|[12]\d|3[01])"
_ZONE = r"""(?: \s?(?: Z\b | [+-]\d\d:?\d\d\b | [ap]m\b | [ap]\.m\.
                 | (?: UTC | GMT | CES?T | [ECMP][SD]T )\b (?:[+-]\d{1,2})? ) ){0,2}"""
_MINUTE, _SECOND = r"(?:[01]?\d|2[0-3]):[0-5]\d", r":[0-5]\d(?:[.,]\d+)?"
_TIME = rf"{_MINUTE}(?:{_SECOND})?{_ZONE}"
_ISO_DAY = rf"{_YEAR}(?P<sign>[-/.]){_MONTH_NUMBER}(?P=sign){_DAY_NUMBER}"
_NUMBER_DAY = rf"{_DAY_NUMBER}(?P<sign>[./-]){_DAY_NUMBER}(?P=sign){_YEAR}"
_NAMED_DAY = rf"""(?:{_WEEKDAY}[.,]?\s+)? (?:
    (?:the\s+)? \d{{1,2}}(?:st|nd|rd|th|\.)? [\s-] (?:of\s+|de\s+)? {_MONTH} (?:,?\s|-) (?:de\s+)?
  | {_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?,?\s (?:{_TIME}\s)?
){_YEAR}\b"""
_THEN = r"(?: T | ,?\s+(?:at\s+|um\s+|à\s+)? )"
_BEGINS, _ENDS = r"(?<![\w./-])", r"(?![\w-]|[./]\d)"  # no part of a model's name, a path or a version
_CLOCK_LABEL = r"""\b(?:
    today(?:['\u2019]s)?(?:\s+date)? | date | datetime | time | timestamp | now | it
  | (?: current | system | local | present )[ _-]?
    (?: date[ ]and[ ]time | datetime | date | day | timestamp | time | year | month | week )
)\b["']? \s*(?: is(?:\s+now)?\b | [:=] )\s* ["'*`]*"""
_CLOCK_WORDS = (
    rf"(?: {_WEEKDAY} | {_MONTH} | {_TIME} | \d{{1,4}}(?:st|nd|rd|th)?\b | \b(?:the|of|at)\b | [ \t,./-] )+"
)

# Ids, counters and names.
_ID_PREFIX = r"""(?: req | request | chatcmpl | cmpl | msg | run | thread | call | sess | session | trace
    | span | resp | asst | toolu | conv | txn | evt | job | gen | batch | cus | ord | tick )"""
_ID_LABEL = r"""\b(?: request | req | trace | span | session | correlation | conversation | chat | thread
    | message | transaction | event | run | job | task | call | ticket | order | invocation
    | tenant | device | nonce )"""
_COUNTED = r"(?:turn|attempt|retry|iteration|round|visit)"
_IS = r"""["']? \s*(?: [:=] | \bis\b )\s* ["'`*#]*"""
_NAME = r"[A-ZÀ-Þ][\w'\u2019-]+"
_NAMES = rf"{_NAME}(?:[ ]{_NAME}){{0,2}}"
_PERSON = r"(?:user|customer|client|caller|patient|student|employee)"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"

CLOCK = FindingKind.CLOCK
REQUEST_ID = FindingKind.REQUEST_ID
COUNTER = FindingKind.COUNTER
USER_NAME = FindingKind.USER_NAME
OTHER = FindingKind.OTHER_VARIABLE

PATTERNS = (
    # 2026-12-01T12:20:52.123Z, 20261201T122052Z, 1.12.2026 um 12:20, 2026/12/01, 12/01/2026
    _row(CLOCK, "generated", rf"{_BEGINS}{_ISO_DAY}{_THEN}{_TIME}"),
    _row(CLOCK, "generated", rf"{_BEGINS}{_YEAR}[01]\d[0-3]\dT?[0-2]\d[0-5]\d[0-5]\dZ?\b", cased=True),
    _row(CLOCK, "generated", rf"{_BEGINS}{_NUMBER_DAY}{_THEN}{_TIME}"),
    _row(CLOCK, "unsure", rf"{_BEGINS}{_ISO_DAY}{_ENDS}"),
    _row(CLOCK, "unsure", rf"{_BEGINS}{_NUMBER_DAY}{_ENDS}"),
    # Tue, 01 Dec 2026 12:20:52 GMT; Dec  1 12:20:52 UTC 2026; December 1st, 2026 at 14:03; 1. Dezember 2026
    _row(CLOCK, "generated", rf"\b{_NAMED_DAY}{_THEN}{_TIME}"),
    _row(CLOCK, "generated", rf"\b{_WEEKDAY}[.,]?\s+{_NAMED_DAY}"),
    _row(CLOCK, "unsure", rf"\b{_NAMED_DAY}"),
    # Today is Tuesday, December 1; current time: 14:03; Current year: 2026; It is Tuesday.
    _row(CLOCK, "labelled", rf"{_CLOCK_LABEL}(?P<value>{_CLOCK_WORDS})(?<![\s,./-])", accepts=_has_digit),
    _row(
        CLOCK,
        "labelled",
        rf"\b(?:today[ ]is|it[ ]is|it's|day(?:[ ]of[ ]the[ ]week)?:)\s+(?P<value>{_WEEKDAY})",
    ),
    _row(CLOCK, "unsure", rf"(?<![\w:.]){_MINUTE}{_SECOND}{_ZONE}(?![\w:])"),
    # Seconds, milliseconds or microseconds since 1970, of the years 2017 to 2033.
    _row(CLOCK, "generated", r"(?<![\w.,$€£#+-]) 1[5-9]\d{8}(?:\d{3}){0,2} (?:\.\d+)? (?![\w-]|[.,]\d)"),
    _row(
        FindingKind.UUID,
        "generated",
        r"(?<![\w-]) (?!0{8}-)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12} (?![\w-])",
    ),
    # req_8f3k2j1h9x, chatcmpl-B9MBs8Cj; Session ID: ab12-99; ticket number: 884213; id: V1StGXR8_Z5jdHi6B-myT
    _row(
        REQUEST_ID,
        "generated",
        rf"(?<![\w-]){_ID_PREFIX}[_-](?P<value>[A-Za-z0-9]{{6,}})(?![\w-])",
        cased=True,
        accepts=_is_serial,
    ),
    _row(
        REQUEST_ID,
        "labelled",
        rf"""{_ID_LABEL}(?:[ _-]?(?:id|uuid|number|no\.?))?{_IS}
        (?P<value> (?=[a-z_-]{{0,40}}\d)(?=\d{{0,40}}[a-z_-])[\w-]{{3,}} | \d{{5,}} )""",
    ),
    _row(REQUEST_ID, "labelled", rf"{_ID_LABEL}[ _-]?id{_IS}(?P<value>[\w-]{{3,}})", accepts=_has_digit),
    _row(
        REQUEST_ID,
        "labelled",
        rf"\b(?:id|ref|reference|nonce){_IS}(?P<value>[\w-]{{10,}})",
        accepts=_is_serial,
    ),
    # A ULID; hashes and other long hexadecimal ids.
    _row(
        REQUEST_ID,
        "generated",
        r"(?<![\w-])[0-7][0-9A-HJKMNP-TV-Z]{25}(?![\w-])",
        cased=True,
        accepts=_is_serial,
    ),
    _row(
        REQUEST_ID,
        "generated",
        r"(?<![\w:])(?:[0-9a-f]{16,}|[0-9A-F]{16,})(?!\w)",
        cased=True,
        accepts=_is_mixed_hex,
    ),
    # Attempt: 3; turn 4 of 10; This is turn 4; ticket #4711; remaining tokens: 3,120
    _row(
        COUNTER,
        "labelled",
        rf"""(?<![\w-])(?:{_COUNTED}|step|message|request|call|query)(?:\s+(?:number|no\.?|count))?["']?
        \s*(?:[:=]\s*[#]?|[#])\s*(?P<value>\d+(?:\s*(?:of|/)\s*\d+)?)(?![\w.])""",
    ),
    _row(COUNTER, "labelled", rf"\b{_COUNTED}\s+(?P<value>\d+\s*(?:of|/)\s*\d+)\b"),
    _row(
        COUNTER,
        "labelled",
        rf"""\b(?:this[ ]is|you[ ]are[ ](?:now[ ])?(?:in|on|at)|currently[ ](?:in|on|at)?)\s+
        (?:your\s+|the\s+)?
        (?:{_COUNTED}|request|message)\s+(?:number\s+)?[#]?(?P<value>\d+)\b""",
    ),
    _row(
        COUNTER,
        "labelled",
        r"""\b(?:ticket|case|order|invoice|conversation|session|customer|visitor)\s+(?:no\.?\s*|number\s+)?
        [#](?P<value>\d+)""",
    ),
    _row(
        COUNTER,
        "labelled",
        r"""\b(?:
            (?:tokens|messages|turns|requests|attempts|calls|credits)[ ](?:left|remaining|so[ ]far|used)
          | (?:remaining|unread)[ ]\w+ | (?:message|request|turn|visit|retry)[ ]?count | counter
        )["']?\s*(?:[:=]|\bis\b)\s*(?P<value>\d[\d,]*)""",
    ),
    # User: Ada Lovelace (no turn of a dialogue); username = ada_42; the user's name is Ada; talking to Ada
    _row(
        USER_NAME,
        "labelled",
        rf"""\b(?i:{_PERSON})["']?\s*[:=]\s*["'*]*(?P<value>{_NAME}(?:[ ]{_NAME}){{1,2}})
        (?=["'*]*[.,;)]?[ \t]*(?:\Z|\n(?!\s*(?i:assistant|ai|bot|agent|a):)))""",
        cased=True,
    ),
    _row(
        USER_NAME,
        "labelled",
        rf"""\b(?i:(?:user|customer|client|full|first|last|account|login|display)[ _-]?name){_IS}(?P<value>
            (?!(?i:string|str|name|the|a|an|required|optional|null|none|not|true|false)\b){_NAMES}
          | [a-z][a-z0-9._-]{{0,40}}[0-9._-][a-z0-9._-]{{0,40}}[a-z0-9]
        )(?![\w(])""",
        cased=True,
    ),
    _row(
        USER_NAME,
        "labelled",
        rf"\b(?i:(?:{_PERSON}['\u2019]?s?|my|their|his|her)[ ]name[ ]is)\s+(?P<value>{_NAMES})",
        cased=True,
    ),
    _row(
        USER_NAME,
        "labelled",
        rf"""\b(?i:talking|speaking|chatting)[ ](?:to|with)\s+(?:user\s+)?(?P<value>{_NAMES})
        (?=\s*[.,;(\n]|\Z)""",
        cased=True,
    ),
    _row(
        USER_NAME,
        "labelled",
        rf"\b(?:user|customer|client|account)[ _-]?id{_IS}(?P<value>[\w-]+)",
        accepts=_has_digit,
    ),
    _row(
        USER_NAME,
        "unsure",
        r"(?<![\w.+-])[\w.+-]+@(?:[a-z0-9-]+\.)+[a-z]{2,}\b",
        accepts=_is_personal,
    ),
    # Addresses of machines, and what else only a generator writes.
    _row(
        OTHER,
        "unsure",
        rf"(?<![\w.-])(?:{_OCTET}\.){{3}}{_OCTET}(?![\w-]|\.\d|/\d)",
        accepts=_is_someones,
    ),
    _row(
        OTHER,
        "unsure",
        r"""(?<![\w:.])(?: (?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}
          | (?:[0-9a-f]{1,4}:){2,6}(?::[0-9a-f]{1,4}){1,5} )(?![\w:])""",
    ),
    _row(
        OTHER,
        "unsure",
        r"(?<![\w/+=])(?<!base64,)[A-Za-z0-9]{16,}(?![\w/+=])",
        accepts=_is_random,
    ),
)

ALONE = (
    _row(CLOCK, "unsure", rf"\W*(?:{_WEEKDAY}|{_MONTH}|{_TIME}|{_YEAR}-?\d\d?)\W*"),
    _row(USER_NAME, "unsure", r"\s*@\w+\s*"),
)
"""What a span that is known to differ says all by itself: here a wrong guess costs a word only."""

EXAMPLE = re.compile(
    r"(?:\bexamples?\b|\be\.g\.|\bfor instance\b|\bsuch as\b|\bformat)[^\n.!?]{0,16}$", re.IGNORECASE
)
"""What stands before a value that shows how one looks."""

CONSTANT = re.compile(
    r"(?:version|cut-?off|released?\b|copyright|©|since|founded|born|published|launched|effective|deprecated"
    r"|sha256[:-]|commit)[^\n]{0,16}$",
    re.IGNORECASE,
)
"""What stands before a date or a hash of something that has happened."""
