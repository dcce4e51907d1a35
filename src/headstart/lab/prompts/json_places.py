"""Where in a JSON text each of its values stands, to the character."""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from headstart.lab.prompts.problem import Path

_BLANK = re.compile(r"[ \t\n\r]*")
_BARE = re.compile(r"[^\s,\]}]+")


class JsonPlaces:
    """A JSON text, decoded, and the place of each value in it.  Raises ``ValueError`` if it is none."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts: dict[Path, int] = {}
        try:
            self.value: Any = json.loads(text)
            self._walk(self._skip(0), ())
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error

    def offset(self, path: Path, index: int = 0) -> int:
        """Where character ``index`` of the string at ``path`` stands in the text; of other values, the start.

        A path that leads nowhere is shortened until it leads somewhere.
        """
        while path not in self._starts:
            path, index = path[:-1], 0
        start = self._starts[path]
        if self._text[start : start + 1] != '"' or not index:
            return start
        at = start + 1
        for _ in range(index):
            at += self._width(at)
        return at

    def _width(self, at: int) -> int:
        """Of the character that begins here, as it is spelled: ``\\n`` is 2 and ``\\ud83d\\ude00`` 12."""
        if self._text[at] != "\\":
            return 1
        if self._text[at + 1] != "u":
            return 2
        unit, following = int(self._text[at + 2 : at + 6], 16), self._text[at + 6 : at + 12]
        paired = 0xD800 <= unit < 0xDC00 and re.fullmatch(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}", following)
        return 12 if paired else 6

    def _walk(self, at: int, path: Path) -> int:
        """Notes the value that begins here and what is in it; returns where it ends."""
        self._starts[path] = at
        match self._text[at]:
            case '"':
                end: int = scanstring(self._text, at + 1)[1]
                return end
            case "{" | "[" as opening:
                return self._walk_items(at + 1, path, is_object=opening == "{")
            case _:
                bare = _BARE.match(self._text, at)
                return bare.end() if bare else at + 1

    def _walk_items(self, at: int, path: Path, *, is_object: bool) -> int:
        at, number = self._skip(at), 0
        while self._text[at] not in "}]":
            key: str | int = number
            if is_object:
                key, at = scanstring(self._text, at + 1)
                at = self._skip(self._skip(at) + 1)  # behind the colon
            at = self._skip(self._walk(at, (*path, key)))
            if self._text[at] == ",":
                at = self._skip(at + 1)
            number += 1
        return at + 1

    def _skip(self, at: int) -> int:
        blank = _BLANK.match(self._text, at)
        return blank.end() if blank else at
