from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.lab.prompts.json_places import JsonPlaces
from headstart.lab.prompts.problem import Path

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
indents = st.sampled_from([None, 0, 2, "\t"])


def paths(value: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(path, value), *(found for key, item in inner for found in paths(item, (*path, key)))]


@settings(max_examples=50)
@given(value=values, indent=indents, plain=st.booleans())
def test_each_value_is_where_it_is_said_to_be(value: Any, indent: Any, plain: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=plain)
    places = JsonPlaces(text)
    assert places.value == value
    for path, item in paths(value):
        assert json.JSONDecoder().raw_decode(text, places.offset(path))[0] == item


@settings(max_examples=50)
@given(before=st.text(), after=st.text(), plain=st.booleans())
def test_each_character_of_a_text_is_where_it_is_said_to_be(before: str, after: str, plain: bool) -> None:
    text = json.dumps({"x": [f"{before}|{after}"]}, ensure_ascii=plain)
    at = JsonPlaces(text).offset(("x", 0), len(before))
    assert text[at] == "|"
    assert json.loads(f'"{text[at + 1 : -3]}"') == after


def test_a_path_that_leads_nowhere_ends_where_it_left() -> None:
    text = '{"a": [1, 2]}'
    assert JsonPlaces(text).offset(("a", 7, "b"), 3) == text.index("[")
    assert JsonPlaces(text).offset(("b",)) == 0


@pytest.mark.parametrize("text", ["", "{", "nothing", '{"a" 1}', "[" * 100_000])
def test_no_json(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the decoder's own words
        JsonPlaces(text)
