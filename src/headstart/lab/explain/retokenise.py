"""Rewritten bodies to tokens, with what most of them share tokenised once."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from typing import Any

from headstart.lab.traces.texts import PromptReader

_CHECKED = 4


class Retokeniser:
    """As `PromptReader.body_tokens`, and faster.

    Tokenizers cut a text at special tokens before all else, so what lies between two of them can be
    remembered.  Not quite all do: the first prompts are tokenised both ways, and once the two differ nothing
    is remembered any more.
    """

    def __init__(self, reader: PromptReader) -> None:
        self._reader = reader
        self._pieces: dict[str, array[int]] | None = {}
        tokenizer = reader.tokenizer
        special = [tokenizer.token(number) for number in range(tokenizer.vocab_size) if tokenizer.is_special(number)]
        names = sorted((re.escape(name) for name in special if name), key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(names)})") if names else None
        self._num_checked = 0

    def tokens(self, body: Mapping[str, Any]) -> array[int]:
        """A chat's or a completion's prompt.  Raises ``RequestError`` for a body that is none."""
        if self._pieces is None or self._special is None or "messages" not in body:
            return self._reader.body_tokens(body)
        text = self._reader.body_text(body)
        tokens = array("i")
        for piece in filter(None, self._special.split(text)):
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
