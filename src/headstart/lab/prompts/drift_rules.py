"""Characters that one day are written otherwise: invisible to people, and another prompt to a cache."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from headstart.lab.prompts.problem import Path, Severity, Spot

_TRAILING = re.compile(r"(?<![ \t])[ \t]+(?=\r?\n)|\n{4,}|(?<!\s)\s+\Z")
_DOUBLED = re.compile(r"(?<=[^\s|:.])[ ]{2,}(?=[^\s|])|(?<=[.:])[ ]{3,}(?=[^\s|])")
# Joiners belong between letters of some scripts and in emoji; blanks that may not break in French.
_INVISIBLE = re.compile(
    r"[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\ufeff]|(?<=[\x00-\x7f])[\u200c\u200d]"
)
_NO_BREAK = re.compile(r"\u00a0(?![:;?!»%€])(?<!«\u00a0)")
_NBSP = 0xA0
_BARE_LF, _CRLF = re.compile(r"(?<!\r)\n"), re.compile(r"\r\n?")


def drift(text: str, where: Path, *, blanks: bool = True) -> Iterator[Spot]:
    """At most one problem of each rule in a text; without ``blanks`` those at ends of lines are nobody's."""
    if blanks:
        blank = _TRAILING.search(text) or _DOUBLED.search(text)
        if blank is not None:
            yield Spot(
                "HS201",
                Severity.INFO,
                where,
                blank.start(),
                "blanks at the end of a line or text, or more of them than one, which editors and "
                "templates like to trim",
                "strip them once, where the text is made",
            )
    crlf = _CRLF.search(text)
    if crlf is not None:
        mixed = _BARE_LF.search(text) is not None
        yield Spot(
            "HS202",
            Severity.WARNING if mixed else Severity.INFO,
            where,
            crlf.start(),
            "line ends of two kinds" if mixed else "line ends of Windows (CRLF)",
            r"write \n everywhere: text.replace('\r\n', '\n')",
        )
    invisible = _INVISIBLE.search(text) or _NO_BREAK.search(text)
    if invisible is not None:
        code = ord(invisible[0])
        yield Spot(
            "HS203",
            Severity.INFO if code == _NBSP else Severity.WARNING,
            where,
            invisible.start(),
            f"a character that nobody sees: U+{code:04X} {unicodedata.name(chr(code), '').lower()}".rstrip(),
            "remove it, or write a plain blank",
        )
    if not unicodedata.is_normalized("NFC", text):
        normal = unicodedata.normalize("NFC", text)
        offset = next((i for i, (a, b) in enumerate(zip(text, normal, strict=False)) if a != b), 0)
        yield Spot(
            "HS204",
            Severity.WARNING,
            where,
            offset,
            "letters spelled with combining accents (not Unicode's form NFC), which look the same as others",
            "unicodedata.normalize('NFC', text), where the text is made",
        )
