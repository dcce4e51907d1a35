"""Rewritten bodies to tokens, with what most of them share tokenised once."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from typing import Any

from headstart.lab.traces.texts import PromptReader

_CHECKED = 4
_BEHIND_LINE = r"(?<=\S\n)(?=[A-Za-z-])"
"""Where no white space and no mark stands beside the line's end: tokens take those in."""


class Retokeniser:
    """As `PromptReader.body_tokens`, and faster.

    Tokenizers cut a text at special tokens before all else, and most of them behind a line's end, too: what
    lies between is tokenised once.  Not quite all do: the first prompts are tokenised both ways, and once the
    two differ nothing is remembered any more.
    """

    def __init__(self, reader: PromptReader) -> None:
        self._reader = reader
        self._pieces: dict[str, array[int]] | None = {}
        tokenizer = reader.tokenizer
        special = filter(tokenizer.is_special, range(tokenizer.vocab_size))
        names = sorted(
            (re.escape(tokenizer.token(number) or "") for number in special), key=len, reverse=True
        )
        self._cut = re.compile(f"({'|'.join(names)})|{_BEHIND_LINE}" if names else _BEHIND_LINE)
        self._num_checked = 0

    def tokens(self, body: Mapping[str, Any]) -> array[int]:
        """A chat's or a completion's prompt.  Raises ``RequestError`` for a body that is none."""
        if self._pieces is None or "messages" not in body:
            return self._reader.body_tokens(body)
        text = self._reader.body_text(body)
        tokens = array("i")
        for piece in filter(None, self._cut.split(text)):
            if piece not in self._pieces:
                self._pieces[piece] = self._reader.tokens(piece)
            tokens += self._pieces[piece]
        if self._num_checked < _CHECKED:
            self._num_checked += 1
            whole = self._reader.tokens(text)
            if whole != tokens:
                self._pieces = None
                return whole
        return tokens
