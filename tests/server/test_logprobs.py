"""How tokens are named where a client needs a name for each."""

from __future__ import annotations

import pytest

from headstart.server.logprobs import Spelled, SpelledToken, for_completion


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b" the", " the"),
        ("é".encode(), "é"),
        (b"\xf0\x9f", "bytes:\\xf0\\x9f"),
        (b" a\xe2\x80", "bytes: a\\xe2\\x80"),
        (b"\n\\\xff", "bytes:\\x0a\\x5c\\xff"),
        (b"", ""),
    ],
)
def test_a_token_that_is_no_text_is_named_by_its_bytes(content: bytes, name: str) -> None:
    assert Spelled(1, content, -1.0).name == name


def test_alternatives_of_equal_text_are_told_apart() -> None:
    chosen = Spelled(5, b"a", -3.0)
    top = (Spelled(7, b"a", -0.5), Spelled(8, b"\xc3", -1.0), Spelled(9, b"\xc4", -2.0), chosen)
    told = for_completion([SpelledToken(chosen, 0, top)])
    assert told.tokens == ["a"]
    assert told.top_logprobs == [{"a": -3.0, "token_id:7": -0.5, "bytes:\\xc3": -1.0, "bytes:\\xc4": -2.0}]
