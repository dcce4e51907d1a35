from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import decoders, pre_tokenizers

from headstart.errors import UnsupportedModelError
from headstart.text.token_bytes import TokenBytes


def read(decoder: Any) -> TokenBytes:
    return TokenBytes.from_decoder(json.loads(decoder.__getstate__()))


@pytest.mark.parametrize(
    "character", ["a", " ", "\n", "\x00", "\x7f", "é", "\xad", "ß", "߿", "ࠀ", "日", "\uffff", "😀"]
)
def test_byte_level_spelling_is_read_back(character: str) -> None:
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = level.pre_tokenize_str(character)[0][0]
    assert read(decoders.ByteLevel())(spelled, first=True) == character.encode()


def test_byte_level_covers_every_byte_once() -> None:
    rule = read(decoders.ByteLevel())
    spelled = pre_tokenizers.ByteLevel.alphabet()
    assert {rule(character, first=False) for character in spelled} == {bytes([byte]) for byte in range(256)}


def test_an_added_token_outside_the_byte_alphabet_is_plain_text() -> None:
    assert read(decoders.ByteLevel())("<end→>", first=True) == "<end→>".encode()


def test_byte_tokens_are_bytes_only_where_the_decoder_says_so() -> None:
    fallback = read(decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]))
    assert fallback("<0xE2>", first=False) == b"\xe2"
    assert fallback("<0xe2>", first=False) == b"\xe2"
    assert fallback("<0xE2>x", first=False) == b"<0xE2>x"
    assert read(decoders.Fuse())("<0xE2>", first=False) == b"<0xE2>"


def test_metaspace_drops_the_mark_of_the_first_token_unless_told_never_to() -> None:
    assert read(decoders.Metaspace())("▁a", first=True) == b"a"
    assert read(decoders.Metaspace())("▁a", first=False) == b" a"
    assert read(decoders.Metaspace(prepend_scheme="never"))("▁a", first=True) == b" a"


def test_without_a_decoder_tokens_are_joined_by_spaces() -> None:
    rule = TokenBytes.from_decoder(None)
    assert rule("a", first=True) + rule("b", first=False) == b"a b"


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (decoders.WordPiece(), "WordPiece"),
        (decoders.CTC(), "CTC"),
        (decoders.Sequence([decoders.Strip(" ", 1, 0)]), "Strip"),  # would strip every token
        (
            decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
            "Strip",
        ),  # the end is not known yet
        (decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]), "Replace"),  # across tokens
        (decoders.Sequence([decoders.ByteFallback(), decoders.ByteLevel()]), "ByteLevel"),
    ],
)
def test_a_decoder_that_needs_the_whole_text_is_refused_by_name(decoder: Any, named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"'{named}' cannot be decoded token by token"):
        read(decoder)
