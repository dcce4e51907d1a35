"""Tokens spelled out with their log-probabilities, in the two forms of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.engine.request import PromptLogprob, TokenLogprob
from headstart.server.replies import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptToken,
    PromptTokens,
    TokenDetails,
    TopToken,
)
from headstart.text import IncrementalDecoder, Tokenizer

LOWEST = -9999.0
"""In place of the logarithm of 0, which JSON cannot say; as in OpenAI's API."""


@dataclass(frozen=True, slots=True)
class Spelled:
    """A token's own bytes, which may be part of a character only, and its log-probability.

    ``as_id``: it is called by its id, like ``token_id:42``, since texts are not unique (vLLM's form).
    """

    token_id: int
    bytes: bytes
    logprob: float
    as_id: bool = False

    @property
    def text(self) -> str:
        """The bytes as text; U+FFFD for what is no character."""
        if self.as_id:
            return f"token_id:{self.token_id}"
        return self.bytes.decode("utf-8", errors="replace")

    @property
    def name(self) -> str:
        r"""The bytes as text; for what is no text alone ``bytes:\xf0\x9f``, as in OpenAI's completions."""
        if self.as_id:
            return self.text
        try:
            return self.bytes.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(
                chr(byte) if 0x20 <= byte < 0x7F and byte != 0x5C else f"\\x{byte:02x}" for byte in self.bytes
            )


@dataclass(frozen=True, slots=True)
class SpelledToken:
    """One token, where its text begins (in characters), and the likeliest in its place.

    The first token of a prompt is not ``scored``: nothing was there to say how likely it is.
    """

    token: Spelled
    offset: int
    top: tuple[Spelled, ...]
    scored: bool = True


class Speller:
    """Spells one answer's tokens, in order."""

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, as_ids: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._as_ids = as_ids
        self._text = IncrementalDecoder(tokenizer, skip_special_tokens)
        self._offset = 0
        self._first = True

    def spell_prompt(
        self, token_ids: Sequence[int], logprobs: Sequence[PromptLogprob], text: str, *, top: int
    ) -> tuple[SpelledToken, ...]:
        """All tokens of a prompt whose ``text`` is echoed before the answer, with ``top`` alternatives each.

        To be called before `spell`, with a log-probability for each token but the first.
        """
        decoder = IncrementalDecoder(self._tokenizer, skip_special_tokens=False)
        offset = 0
        tokens = []
        for token_id, told in zip(token_ids, (None, *logprobs), strict=True):
            own = self._spelled(token_id, 0.0 if told is None else told.logprob)
            others = () if told is None else tuple(self._spelled(*one) for one in told.top[:top])
            tokens.append(SpelledToken(own, min(offset, len(text)), others, scored=told is not None))
            # A marker that encoding has put there is in no text.
            spelling = own.bytes.decode("utf-8", errors="replace")
            if not self._tokenizer.is_special(token_id) or text.startswith(spelling, offset):
                offset += len(decoder.push((token_id,)))
            self._first = False
        self._offset = len(text)
        self._text = IncrementalDecoder(self._tokenizer, self._skip_special_tokens, continued=True)
        return tuple(tokens)

    def spell(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> tuple[SpelledToken, ...]:
        """The next tokens; none where nobody asked for log-probabilities."""
        return tuple(self._next(token_id, told) for token_id, told in zip(token_ids, logprobs, strict=False))

    def _next(self, token_id: int, told: TokenLogprob) -> SpelledToken:
        own = self._spelled(token_id, told.logprob)
        spelled = SpelledToken(own, self._offset, tuple(self._spelled(*one) for one in told.top))
        self._offset += len(self._text.push((token_id,)))
        self._first = False
        return spelled

    def _spelled(self, token_id: int, logprob: float) -> Spelled:
        return _spelled(self._tokenizer, token_id, logprob, first=self._first, as_id=self._as_ids)


def _spelled(
    tokenizer: Tokenizer, token_id: int, logprob: float, *, first: bool, as_id: bool = False
) -> Spelled:
    token = tokenizer.token(token_id)  # None: the embedding is larger than the vocabulary
    content = b"" if token is None else tokenizer.token_bytes(token, first=first)
    return Spelled(token_id, content, max(logprob, LOWEST), as_id)


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
        token_logprobs=[token.token.logprob if token.scored else None for token in tokens],
        tokens=[token.token.name for token in tokens],
        top_logprobs=[_by_name((token.token, *token.top)) if token.scored else None for token in tokens],
    )


def _by_name(tokens: Sequence[Spelled]) -> dict[str, float]:
    """Log-probabilities by name; of several tokens with one name, the first has it, the others their ids."""
    names: dict[str, float] = {}
    for token in {token.token_id: token for token in tokens}.values():
        name = f"token_id:{token.token_id}" if token.name in names else token.name
        names[name] = token.logprob
    return names


def for_prompt(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[PromptLogprob], *, top: int
) -> PromptTokens:
    """The ``prompt_logprobs`` of a reply, with ``top`` alternatives in each place."""

    def entry(token_id: int, logprob: float, rank: int) -> PromptToken:
        token = _spelled(tokenizer, token_id, logprob, first=False)
        return PromptToken(logprob=token.logprob, rank=rank, decoded_token=token.text)

    places: PromptTokens = [None]
    for token_id, told in zip(token_ids[1:], logprobs, strict=True):
        place = {token_id: entry(token_id, told.logprob, told.rank)}
        for rank, (other, logprob) in enumerate(told.top[:top], start=1):
            if other != token_id:
                place[other] = entry(other, logprob, rank)
        places.append(place)
    return places
