from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from headstart.text import IncrementalDecoder, Tokenizer

# Characters of one to four bytes, and those that join, combine, vary, direct or control.
HARD = "aé日😀\u0301\u200d\ufe0f\U0001f3fd\u202e\x00\n \ufffd▁"
TEXTS = st.text() | st.text(st.sampled_from(HARD))


def in_groups(data: st.DataObject, ids: list[int]) -> list[list[int]]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)))))
    return [ids[start:end] for start, end in pairwise([0, *cuts, len(ids)])]


def stream(tokenizer: Tokenizer, groups: list[list[int]], skip: bool) -> list[str]:
    decoder = IncrementalDecoder(tokenizer, skip)
    return [*map(decoder.push, groups), decoder.finish()]


@given(data=st.data(), text=TEXTS)
def test_pieces_of_a_text_join_to_the_librarys_text(family: Any, data: st.DataObject, text: str) -> None:
    ids = family.library.encode(text).ids
    whole = family.library.decode(ids)
    assert "".join(stream(family.ours, [[i] for i in ids], skip=True)) == whole
    assert "".join(stream(family.ours, in_groups(data, ids), skip=True)) == whole


@given(data=st.data(), skip=st.booleans())
def test_pieces_of_random_ids_join_to_decode(family: Any, data: st.DataObject, skip: bool) -> None:
    ids = data.draw(st.lists(st.integers(0, family.ours.vocab_size - 1)))
    whole = family.ours.decode(ids, skip)
    assert "".join(stream(family.ours, [[i] for i in ids], skip)) == whole
    assert "".join(stream(family.ours, in_groups(data, ids), skip)) == whole


@given(data=st.data(), skip=st.booleans())
def test_pieces_of_random_byte_level_ids_join_to_the_librarys_text(
    families: Any, data: st.DataObject, skip: bool
) -> None:
    family = families["byte_level"]
    ids = data.draw(st.lists(st.integers(0, family.ours.vocab_size - 1)))
    whole = family.library.decode(ids, skip_special_tokens=skip)
    assert "".join(stream(family.ours, in_groups(data, ids), skip)) == whole


@given(text=TEXTS.map(lambda text: text.replace("\ufffd", "")))
def test_half_a_character_is_never_shown(family: Any, text: str) -> None:
    ids = family.library.encode(text).ids
    assert not any("\ufffd" in piece for piece in stream(family.ours, [[i] for i in ids], skip=True))


@given(data=st.data())
def test_no_more_than_a_begun_character_is_held_back(family: Any, data: st.DataObject) -> None:
    """Three bytes at most, so after any push only one or two U+FFFD can be missing from what was decoded."""
    ids = data.draw(st.lists(st.integers(0, family.ours.vocab_size - 1)))
    decoder, shown = IncrementalDecoder(family.ours), ""
    for end, token_id in enumerate(ids, start=1):
        shown += decoder.push([token_id])
        whole = family.ours.decode(ids[:end])
        assert whole.startswith(shown)
        assert whole[len(shown) :] in ("", "\ufffd", "\ufffd\ufffd")


def test_a_real_replacement_character_is_shown_at_once(family: Any) -> None:
    decoder = IncrementalDecoder(family.ours)
    assert "".join(decoder.push([i]) for i in family.library.encode("a\ufffd").ids) == "a\ufffd"


def test_a_character_that_is_never_completed_ends_as_a_replacement(family: Any) -> None:
    ids = family.library.encode("x😀").ids
    decoder = IncrementalDecoder(family.ours)
    assert decoder.push(ids[:-1]) == "x"
    assert decoder.finish() == "\ufffd"
    assert decoder.finish() == ""


def test_a_special_token_inside_a_character_does_not_break_it(family: Any) -> None:
    *begun, last = family.library.encode("😀").ids
    decoder = IncrementalDecoder(family.ours)
    shown = decoder.push([*begun, family.library.token_to_id("</s>"), last])
    assert shown == "😀"


def test_each_token_is_looked_at_once(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    spell = family.ours.token
    monkeypatch.setattr(family.ours, "token", lambda token_id: (seen.append(token_id), spell(token_id))[1])
    ids = family.library.encode("the cache é 😀 " * 50).ids
    decoder = IncrementalDecoder(family.ours)
    for token_id in ids:
        decoder.push([token_id])
    assert seen == ids


def test_a_sampled_id_beyond_the_vocabulary_adds_no_text(family: Any) -> None:
    *begun, last = family.library.encode("😀").ids
    decoder = IncrementalDecoder(family.ours)
    assert decoder.push([*begun, family.ours.vocab_size, -1]) == ""
    assert decoder.push([last]) == "😀"


def test_leading_spaces_are_stripped_from_the_text_not_from_each_token(tmp_path: Any) -> None:
    library = tokenizers.Tokenizer(models.BPE({"▁": 0, "▁▁": 1, "a": 2}, []))
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)]
    )
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_directory(tmp_path)
    for ids in ([0, 0, 0, 2], [1, 0, 2, 0], [0, 2, 0], [2, 0, 2], [0], []):
        decoder = IncrementalDecoder(tokenizer)
        assert "".join(decoder.push([i]) for i in ids) + decoder.finish() == library.decode(ids)
