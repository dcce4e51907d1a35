"""Tokens spelled out with their log-probabilities, in the two forms of OpenAI's API."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from headstart.engine.request import TokenLogprob
from headstart.server.replies import ChatLogprobs, CompletionLogprobs, TokenDetails, TopToken
from headstart.text import Tokenizer

LOWEST = -9999.0
"""In place of the logarithm of 0, which JSON cannot say; as in OpenAI's API."""


@dataclass(frozen=True, slots=True)
class Spelled:
    """A token's own bytes, which may be part of a character only, and its log-probability."""

    bytes: bytes
    logprob: float

    @property
    def text(self) -> str:
        """The bytes as text; U+FFFD for what is no character."""
        return self.bytes.decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True)
class SpelledToken:
    """One generated token, where its text begins (in characters), and the likeliest in its place."""

    token: Spelled
    offset: int
    top: tuple[Spelled, ...]


class Speller:
    """Spells one answer's tokens, in order."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0
        self._first = True

    def spell(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> tuple[SpelledToken, ...]:
        """The next tokens; none where nobody asked for log-probabilities."""
        return tuple(self._next(token_id, told) for token_id, told in zip(token_ids, logprobs, strict=False))

    def _next(self, token_id: int, told: TokenLogprob) -> SpelledToken:
        own = self._spelled(token_id, told.logprob)
        spelled = SpelledToken(own, self._offset, tuple(self._spelled(*one) for one in told.top))
        self._offset += len(self._utf8.decode(own.bytes))
        self._first = False
        return spelled

    def _spelled(self, token_id: int, logprob: float) -> Spelled:
        token = self._tokenizer.token(token_id)  # None: the embedding is larger than the vocabulary
        content = b"" if token is None else self._tokenizer.token_bytes(token, first=self._first)
        return Spelled(content, max(logprob, LOWEST))


def for_chat(tokens: Sequence[SpelledToken]) -> ChatLogprobs:
    """The ``logprobs`` of a chat's choice."""
    content = [
        TokenDetails(
            token=token.token.text,
            logprob=token.token.logprob,
            bytes=list(token.token.bytes),
            top_logprobs=[
                TopToken(token=one.text, logprob=one.logprob, bytes=list(one.bytes)) for one in token.top
            ],
        )
        for token in tokens
    ]
    return ChatLogprobs(content=content, refusal=None)


def for_completion(tokens: Sequence[SpelledToken]) -> CompletionLogprobs:
    """The ``logprobs`` of a completion's choice; the token itself is always among the likeliest."""
    return CompletionLogprobs(
        text_offset=[token.offset for token in tokens],
        token_logprobs=[token.token.logprob for token in tokens],
        tokens=[token.token.text for token in tokens],
        top_logprobs=[
            {one.text: one.logprob for one in reversed((*token.top, token.token))} for token in tokens
        ],
    )
