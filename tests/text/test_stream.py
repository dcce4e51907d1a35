from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.errors import RequestError
from headstart.text import IncrementalDecoder, TextStream, Tokenizer

# Few letters, so that stop strings do occur, overlap themselves and contain each other.
TEXTS = st.text(st.sampled_from("ab 日😀"), max_size=40)
STOPS = st.lists(st.text(st.sampled_from("ab 日😀"), min_size=1, max_size=5), max_size=4)


def naive(
    tokenizer: Tokenizer, ids: list[int], stop: list[str], min_tokens: int = 0
) -> tuple[str, int, bool]:
    """Text, tokens used and whether it stopped, by searching the text of every prefix of the ids."""
    exempt = len(IncrementalDecoder(tokenizer).push(ids[:min_tokens]))
    for count in range(min_tokens + 1, len(ids) + 1):
        text = tokenizer.decode(ids[:count])
        starts = [(s, text.find(s, max(0, exempt + 1 - len(s)))) for s in stop]
        matches = [(start + len(s), start) for s, start in starts if start >= 0]
        if matches:
            return text[: min(matches)[1]], count, True
    return tokenizer.decode(ids), len(ids), False


@given(data=st.data(), text=TEXTS, stop=STOPS, min_tokens=st.sampled_from([0, 0, 1, 3, 10]))
def test_any_grouping_gives_what_a_search_of_the_whole_text_gives(
    family: Any, data: st.DataObject, text: str, stop: list[str], min_tokens: int
) -> None:
    ids = family.ours.encode(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)))))
    stream = TextStream(family.ours, stop, min_tokens=min_tokens)
    shown = "".join(stream.push(ids[start:end]) for start, end in pairwise([0, *cuts, len(ids)]))
    shown += stream.finish()
    assert (shown, stream.num_tokens, stream.stopped) == naive(family.ours, ids, stop, min_tokens)


@given(text=TEXTS, stop=STOPS)
def test_only_the_beginning_of_a_stop_string_is_held_back(family: Any, text: str, stop: list[str]) -> None:
    stream, shown = TextStream(family.ours, stop), ""
    ids = family.ours.encode(text)
    for end, token_id in enumerate(ids, start=1):
        shown += stream.push([token_id])
        if stream.stopped:
            break
        held = family.ours.decode(ids[:end]).removeprefix(shown).removesuffix("\ufffd")
        assert not held or any(s.startswith(held) for s in stop)


@pytest.fixture
def smallest(families: Any) -> Any:
    """The byte-level tokenizer, which has a token for each ASCII letter."""
    return families["byte_level"]


def letters(family: Any, text: str) -> list[int]:
    return [family.library.token_to_id({" ": "Ġ", "\n": "Ċ"}.get(letter, letter)) for letter in text]


def test_a_stop_string_may_span_tokens_and_pushes(smallest: Any) -> None:
    stream = TextStream(smallest.ours, ["\nUser:"])
    pieces = [stream.push([i]) for i in letters(smallest, "Hi.\nUs\nUser: more")]
    assert pieces == ["H", "i", ".", "", "", "", "\nUs", *[""] * 10]
    assert (stream.stopped, stream.stop_string, stream.num_tokens) == (True, "\nUser:", 12)
    assert stream.finish() == ""


def test_text_that_only_looked_like_a_stop_string_is_released_at_the_end(smallest: Any) -> None:
    stream = TextStream(smallest.ours, ["bcd"])
    assert stream.push(letters(smallest, "abc")) == "a"
    assert stream.finish() == "bc"
    assert (stream.stopped, stream.stop_string, stream.num_tokens) == (False, None, 3)


def test_a_stop_string_that_overlaps_itself_is_found(smallest: Any) -> None:
    stream = TextStream(smallest.ours, ["aab"])
    assert [stream.push([i]) for i in letters(smallest, "aaaab")] == ["", "", "a", "a", ""]
    assert stream.stopped


@pytest.mark.parametrize(
    ("stop", "text", "shown", "winner"),
    [
        (["cd", "b"], "abcd", "a", "b"),  # completed first
        (["bc", "abcd"], "xabcd", "xa", "bc"),  # even inside a longer one that began earlier
        (["c", "bc"], "abc", "a", "bc"),  # completed together: the longer one
    ],
)
def test_the_stop_string_that_is_completed_first_wins(
    smallest: Any, stop: list[str], text: str, shown: str, winner: str
) -> None:
    for ids in (letters(smallest, text), smallest.ours.encode(text)):
        stream = TextStream(smallest.ours, stop)
        assert stream.push(ids) + stream.finish() == shown
        assert stream.stop_string == winner


def test_what_comes_after_a_stop_string_is_neither_shown_nor_counted(smallest: Any) -> None:
    stream = TextStream(smallest.ours, ["b"])
    assert stream.push(letters(smallest, "abaa")) == "a"
    assert stream.push(letters(smallest, "aaa")) == ""
    assert stream.num_tokens == 2


def test_a_stop_string_may_be_completed_by_the_replacement_of_a_begun_character(smallest: Any) -> None:
    begun = smallest.library.encode("😀").ids[:1]
    stream = TextStream(smallest.ours, ["a\ufffd"])
    assert stream.push([*letters(smallest, "xa"), *begun]) == "x"
    assert not stream.stopped
    assert stream.finish() == ""
    assert (stream.stop_string, stream.num_tokens) == ("a\ufffd", 3)
    assert stream.finish() == ""


def test_a_special_token_ends_nothing_unless_it_is_shown(smallest: Any) -> None:
    ids = [*letters(smallest, "a"), smallest.library.token_to_id("</s>"), *letters(smallest, "b")]
    hidden = TextStream(smallest.ours, ["</s>"])
    assert hidden.push(ids) + hidden.finish() == "ab"
    shown = TextStream(smallest.ours, ["</s>"], skip_special_tokens=False)
    assert (shown.push(ids), shown.num_tokens) == ("a", 2)


def test_an_empty_stop_string_is_refused(smallest: Any) -> None:
    with pytest.raises(RequestError, match="must not be empty") as caught:
        TextStream(smallest.ours, ["a", ""])
    assert caught.value.param == "stop"


def test_a_stop_string_counts_only_after_min_tokens(smallest: Any) -> None:
    stream = TextStream(smallest.ours, ["aba"], min_tokens=3)
    pieces = [stream.push([token_id]) for token_id in letters(smallest, "ababa!")]
    assert pieces == ["", "", "ab", "", "", ""]  # the first "aba" is text; its end begins the second
    assert (stream.num_tokens, stream.stopped) == (5, True)


def test_text_that_continues_other_text_keeps_its_first_space(families: Any) -> None:
    for family in families.values():
        ids = family.ours.encode("the cache in the cache", add_special_tokens=False)
        half = family.ours.encode("the cache", add_special_tokens=False)
        assert ids[: len(half)] == half
        stream = TextStream(family.ours, [], continued=True)
        assert stream.push(ids[len(half) :]) + stream.finish() == " in the cache"


@pytest.mark.parametrize(("included", "by_string", "by_token"), [(False, "xa", "ab"), (True, "xaba", "aba")])
def test_what_ends_the_text_is_in_it_only_if_that_is_wanted(
    smallest: Any, included: bool, by_string: str, by_token: str
) -> None:
    stream = TextStream(smallest.ours, ["ba"], include_stop=included)
    assert stream.push(letters(smallest, "xabaa")) == by_string
    stream = TextStream(smallest.ours, ["never"], include_stop=included)
    text = stream.push_output(letters(smallest, "aba"), ended=True) + stream.finish()
    assert (text, stream.num_tokens, stream.stopped) == (by_token, 3, False)
    stream = TextStream(smallest.ours, ["b"], include_stop=included)
    stream.push_output(letters(smallest, "aba"), ended=True)
    assert stream.num_tokens == 2, "what comes behind a stop string does not count, a stop token neither"
