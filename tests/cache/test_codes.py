"""Codes stand for exactly one content each, and none is ever given twice."""

from __future__ import annotations

import pytest

from headstart.cache import CacheRequest, MediaSpan, PromptEmbeds
from headstart.cache.codes import _LAST, _LEAST_CAPACITY, Codes
from headstart.errors import CacheError

P, Q = "cafe" * 4, "beef" * 4


@pytest.fixture
def codes() -> Codes:
    return Codes(num_blocks=4, block_size=4)


def ints(run: bytearray) -> list[int]:
    return CacheRequest("", run).token_ids()


def showing(
    digest: str, offset: int = 1, length: int = 2, tokens: tuple[int, ...] = (5,) * 6
) -> CacheRequest:
    return CacheRequest("r", tokens, media=[MediaSpan(digest, offset, length)])


def test_a_plain_prompt_is_compared_as_it_is(codes: Codes) -> None:
    request = CacheRequest("r", [1, 2, 3])
    assert codes.make(request, 0, 3) is codes.find(request) is request.tokens


def test_a_code_means_a_digest_a_length_and_the_tokens(codes: Codes) -> None:
    assert ints(codes.make(showing(P))) == [5, -1, -1, 5, 5, 5]
    assert ints(codes.make(showing(P, offset=3))) == [5, 5, 5, -1, -1, 5]
    assert ints(codes.make(showing(Q))) == [5, -2, -2, 5, 5, 5]
    assert ints(codes.make(showing(P, length=3))) == [5, -3, -3, -3, 5, 5]
    assert ints(codes.make(showing(P, tokens=(5, 5, 6, 5)))) == [5, -4, -4, 5]
    assert ints(codes.find(showing(P))) == [5, -1, -1, 5, 5, 5]


def test_looking_gives_no_codes(codes: Codes) -> None:
    before = codes.state()
    assert ints(codes.find(showing(P))) == [5]  # as far as it can be compared
    assert codes.state() == before
    codes.make(showing(P))
    two = CacheRequest("r", [5] * 8, media=[MediaSpan(P, 1, 2), MediaSpan(Q, 4, 3)])
    assert ints(codes.find(two)) == [5, -1, -1, 5]


def test_the_original_tokens_stay_and_new_ones_follow(codes: Codes) -> None:
    request = showing(P)
    codes.make(request)
    request.append(9)
    assert request.token_ids() == [5] * 6 + [9]
    assert ints(codes.make(request)) == ints(codes.find(request)) == [5, -1, -1, 5, 5, 5, 9]


def test_embeddings_have_a_code_for_each_block(codes: Codes) -> None:
    one, other = (
        CacheRequest("r", [0] * 8, prompt_embeds=PromptEmbeds(rows, 6)) for rows in (b"aabbcc", b"aabbcd")
    )
    assert ints(codes.make(one)) == [-1] * 4 + [-2] * 2 + [0] * 2
    assert ints(codes.make(other)) == [-1] * 4 + [-3] * 2 + [0] * 2


def test_embeddings_over_an_image_tell_of_both(codes: Codes) -> None:
    runs = [
        ints(codes.make(CacheRequest("r", [0] * 4, media=[MediaSpan(digest, 1, 2)], prompt_embeds=embeds)))
        for digest in (P, Q)
        for embeds in (PromptEmbeds(b"abcd", 4), PromptEmbeds(b"abce", 4))
    ]
    assert len({tuple(run) for run in runs}) == 4
    assert all(len(set(run)) == 1 for run in runs)


def test_what_was_forgotten_gets_another_code(codes: Codes) -> None:
    first = showing(P)
    codes.make(first)
    for number in range(_LEAST_CAPACITY):
        codes.make(showing(f"{number:016}"))
    assert ints(codes.find(showing(P))) == [5]
    again = ints(codes.make(showing(P)))[1]
    assert again == -2 - _LEAST_CAPACITY
    assert ints(codes.make(first))[1] == -1  # of what it has published, too


def test_what_is_used_is_not_forgotten(codes: Codes) -> None:
    for number in range(2 * _LEAST_CAPACITY):
        codes.make(showing(P))
        codes.make(showing(f"{number:016}"))
    assert ints(codes.find(showing(P)))[1] == -1


def test_two_indexes_have_codes_of_their_own() -> None:
    request, other = showing(P), Codes(4, 4)
    other.make(showing(Q))
    assert ints(Codes(4, 4).make(request))[1] == -1
    assert ints(other.make(request))[1] == -2


def test_after_a_reset_no_code_is_given_again(codes: Codes) -> None:
    waiting = showing(P)
    codes.make(waiting)
    codes.clear()
    assert ints(codes.make(showing(Q)))[1] == -2
    assert ints(codes.make(waiting))[1] == -3  # the one that others with its content get
    assert codes.find(showing(P)) == codes.find(waiting)


def test_negative_ids_and_codes_are_not_compared(codes: Codes) -> None:
    negative = CacheRequest("r", [1, -1, -1])
    codes.make(showing(P))
    assert ints(codes.find(negative)) == ints(codes.make(negative, 0, 3)) == []


def test_where_negative_ids_are_cached_images_are_not() -> None:
    codes = Codes(4, 4)
    negative = CacheRequest("r", [1, -1, -1])
    assert codes.make(negative, 0, 3) is codes.find(negative) is negative.tokens
    assert ints(codes.make(showing(P))) == [5]
    codes.clear()
    assert ints(codes.make(showing(P))) == [5, -1, -1, 5, 5, 5]


def test_codes_end_with_a_sentence(codes: Codes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes, "_last", _LAST + 1)
    assert ints(codes.make(showing(P)))[1] == _LAST
    with pytest.raises(CacheError, match="no code is left"):
        codes.make(showing(Q))


@pytest.mark.parametrize(
    ("num_tokens", "whole"), [(0, 0), (1, 1), (2, 1), (3, 1), (4, 4), (5, 5), (6, 5), (7, 5), (8, 8), (9, 9)]
)
def test_a_hit_takes_all_of_an_image_or_none(codes: Codes, num_tokens: int, whole: int) -> None:
    request = CacheRequest("r", [5] * 10, media=[MediaSpan(P, 1, 3), MediaSpan(Q, 5, 3)])
    assert codes.whole(request, num_tokens) == whole


def test_a_hit_takes_whole_blocks_of_embeddings(codes: Codes) -> None:
    request = CacheRequest("r", [0] * 9, prompt_embeds=PromptEmbeds(b"abcdef", 6))
    assert [codes.whole(request, count) for count in range(10)] == [0, 0, 0, 0, 4, 4, 6, 7, 8, 9]
    both = CacheRequest("r", [0] * 9, media=[MediaSpan(P, 3, 2)], prompt_embeds=PromptEmbeds(b"abcdef", 6))
    assert [codes.whole(both, count) for count in range(10)] == [0, 0, 0, 0, 0, 0, 6, 7, 8, 9]
