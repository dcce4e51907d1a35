"""Content that a prompt's token ids do not tell: images and the like, and embeddings."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headstart.errors import RequestError

if TYPE_CHECKING:
    from typing_extensions import Buffer

LEAST_DIGITS = 16
"""Digits of the shortest digest that is taken: 64 bits in hexadecimal."""


@dataclass(frozen=True, slots=True, init=False)
class MediaSpan:
    """The ``length`` placeholder tokens from ``offset`` on stand for the content with this digest.

    ``digest`` is text, all of it: at least 16 hexadecimal digits.  Bytes (at least 8) are taken as theirs.
    Whatever changes what the model sees of the content (its decoding, its size) must change the digest.
    Raises ``RequestError``.
    """

    digest: str
    offset: int
    length: int

    def __init__(self, digest: str | bytes, offset: int, length: int) -> None:
        object.__setattr__(self, "digest", digest.hex() if isinstance(digest, bytes) else digest)
        object.__setattr__(self, "offset", offset)
        object.__setattr__(self, "length", length)
        given: object = self.digest  # a caller from Python may hand over anything
        if not isinstance(given, str) or len(given) < LEAST_DIGITS or not is_text(given):
            raise _wrong(
                f"digest must be a text of at least {LEAST_DIGITS} hexadecimal digits, not {given!r}"
            )
        for name, value, least in (("offset", offset, 0), ("length", length, 1)):
            if type(value) is not int or value < least:
                raise _wrong(f"{name} must be a whole number of at least {least}, not {value!r}")

    @property
    def end(self) -> int:
        """The token behind it."""
        return self.offset + self.length


class PromptEmbeds:
    """Embeddings that stand for a prompt's first ``num_rows`` tokens.

    ``data`` is any contiguous buffer with the raw bytes of their tensor, row by row; a row's length is the
    model's.  It is kept, not copied, and must not change.  Raises ``RequestError``.
    """

    __slots__ = ("_row_bytes", "_view", "num_rows")

    def __init__(self, data: Buffer, num_rows: int) -> None:
        view = memoryview(data).cast("B")
        if type(num_rows) is not int or num_rows < 1 or len(view) < num_rows or len(view) % num_rows:
            raise RequestError(
                f"prompt_embeds must have whole bytes for each row: {len(view)} bytes for {num_rows!r} rows",
                param="prompt_embeds",
                code="invalid_value",
            )
        self.num_rows = num_rows
        self._view = view.toreadonly()
        self._row_bytes = len(view) // num_rows

    def digest(self, start: int, stop: int) -> bytes:
        """SHA-256 of the rows ``start`` to ``stop`` (exclusive), as many of them as there are."""
        return hashlib.sha256(self._view[start * self._row_bytes : stop * self._row_bytes]).digest()


def check_spans(spans: Sequence[MediaSpan], num_tokens: int) -> None:
    """Raise ``RequestError`` unless the spans are in order, apart, and within ``num_tokens`` tokens."""
    end = 0
    for number, span in enumerate(spans):
        if not isinstance(span, MediaSpan):
            raise _wrong(f"span {number} must be a MediaSpan, not {span!r}")
        if span.offset < end:
            raise _wrong(
                f"span {number} begins at token {span.offset}, before the one before it ends ({end})"
            )
        end = span.end
    if end > num_tokens:
        raise _wrong(f"the last span ends behind token {end}, but the prompt has only {num_tokens}")


def spans_between(spans: Sequence[MediaSpan], start: int, stop: int) -> Sequence[MediaSpan]:
    """Those of the ordered ``spans`` that have a token between ``start`` and ``stop`` (exclusive)."""
    first = bisect_right(spans, start, key=lambda span: span.end)
    last = first
    while last < len(spans) and spans[last].offset < stop:
        last += 1
    return spans[first:last]


def is_text(text: str) -> bool:
    """Whether the text can be written as UTF-8: half of a surrogate pair cannot."""
    return not any(0xD800 <= ord(letter) <= 0xDFFF for letter in text)


def _wrong(why: str) -> RequestError:
    return RequestError(f"media: {why}", param="media", code="invalid_value")
