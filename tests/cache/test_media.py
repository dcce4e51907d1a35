from __future__ import annotations

import hashlib
from array import array
from typing import Any

import numpy as np
import pytest

from headstart.cache import CacheRequest, MediaSpan, PromptEmbeds
from headstart.cache.media import spans_between
from headstart.errors import RequestError

DIGEST = "0123456789abcdef"


def test_a_span_is_a_value() -> None:
    span = MediaSpan(DIGEST, offset=3, length=41)
    assert span == MediaSpan(bytes.fromhex(DIGEST), 3, 41)  # bytes are taken as their digits
    assert hash(span) == hash(MediaSpan(DIGEST, 3, 41))
    assert (span.digest, span.offset, span.length, span.end) == (DIGEST, 3, 41, 44)
    assert repr(span) == f"MediaSpan(digest='{DIGEST}', offset=3, length=41)"


@pytest.mark.parametrize(
    "digest", ["", "abc", DIGEST[1:], b"", b"1234567", None, 7, ["a"], DIGEST + "\ud800"]
)
def test_a_digest_has_64_bits_or_more(digest: Any) -> None:
    with pytest.raises(RequestError, match="media: digest must be a text of at least 16 hex") as caught:
        MediaSpan(digest, 0, 1)  # case 10: no key uses fewer
    assert (caught.value.param, caught.value.code, caught.value.status) == ("media", "invalid_value", 400)


@pytest.mark.parametrize(
    ("offset", "length", "message"),
    [
        (-1, 1, "offset must be a whole number of at least 0, not -1"),
        (1.0, 1, "offset must be a whole number of at least 0, not 1.0"),
        (True, 1, "offset must be a whole number of at least 0, not True"),
        (0, 0, "length must be a whole number of at least 1, not 0"),
        (0, None, "length must be a whole number of at least 1, not None"),
    ],
)
def test_a_span_has_a_place(offset: Any, length: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        MediaSpan(DIGEST, offset, length)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(4, 2), (0, 2)], "span 1 begins at token 0, before the one before it ends (6)"),
        ([(0, 3), (2, 2)], "span 1 begins at token 2, before the one before it ends (3)"),
        ([(0, 2), (0, 2)], "span 1 begins at token 0, before the one before it ends (2)"),
        ([(8, 3)], "the last span ends behind token 11, but the prompt has only 10"),
    ],
)
def test_spans_are_in_order_apart_and_in_the_prompt(spans: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        CacheRequest("r", range(10), media=[MediaSpan(DIGEST, *span) for span in spans])
    assert str(caught.value) == f"media: {message}"


def test_spans_may_touch_and_fill_the_prompt() -> None:
    media = [MediaSpan(DIGEST, 0, 4), MediaSpan(DIGEST, 4, 6)]
    assert CacheRequest("r", range(10), media=media).media == tuple(media)


def test_what_is_no_span_is_refused() -> None:
    wrong: Any = [(DIGEST, 0, 1)]
    with pytest.raises(RequestError, match="span 0 must be a MediaSpan, not "):
        CacheRequest("r", range(10), media=wrong)


def test_spans_are_found_by_their_tokens() -> None:
    spans = [MediaSpan(DIGEST, *place) for place in ((2, 3), (5, 1), (9, 2))]
    for start in range(13):
        for stop in range(start + 1, 14):
            expected = [span for span in spans if set(range(span.offset, span.end)) & set(range(start, stop))]
            assert list(spans_between(spans, start, stop)) == expected


def test_token_ids_beside_media_are_not_negative() -> None:
    extras: list[dict[str, Any]] = [
        {"media": [MediaSpan(DIGEST, 0, 1)]},
        {"prompt_embeds": PromptEmbeds(b"1234", 1)},
    ]
    for extra in extras:
        with pytest.raises(
            RequestError, match="token ids must not be negative in a prompt with media or emb"
        ):
            CacheRequest("r", [1, -1], **extra)
        request = CacheRequest("r", [1, 2], **extra)
        with pytest.raises(RequestError, match="token ids must not be negative"):
            request.append(-1)
        request.append(2**31 - 1)
        assert request.num_tokens == 3


def test_embeddings_are_told_by_their_bytes() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    embeds = PromptEmbeds(rows, 4)
    for start, stop in ((0, 4), (1, 3), (3, 9), (4, 8)):
        assert embeds.digest(start, stop) == hashlib.sha256(rows[start:stop].tobytes()).digest()
    assert PromptEmbeds(rows.tobytes(), 4).digest(0, 4) == embeds.digest(0, 4)
    assert PromptEmbeds(array("f", rows.flatten()), 4).digest(1, 2) == embeds.digest(1, 2)


@pytest.mark.parametrize("num_rows", [0, -1, 3, 5, True, None, 1.0])
def test_rows_have_whole_bytes(num_rows: Any) -> None:
    with pytest.raises(RequestError, match="prompt_embeds must have whole bytes for each row: 4 bytes for"):
        PromptEmbeds(b"1234", num_rows)


def test_there_are_no_more_rows_than_tokens() -> None:
    with pytest.raises(RequestError, match="prompt_embeds are 4 rows for 3 tokens"):
        CacheRequest("r", range(3), prompt_embeds=PromptEmbeds(b"1234", 4))
    assert CacheRequest("r", range(4), prompt_embeds=PromptEmbeds(b"1234", 4)).num_tokens == 4
