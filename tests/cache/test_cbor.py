"""CBOR in its shortest forms, one by one and by whole runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.cache import CacheRequest, cbor

EDGES = [0, 23, 24, 255, 256, 65535, 65536, 2**24, 2**31 - 1]


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"), (23, "17"), (24, "1818"), (255, "18ff"), (256, "190100"), (65535, "19ffff"),
        (65536, "1a00010000"), (2**32 - 1, "1affffffff"), (2**32, "1b0000000100000000"),
        (2**64 - 1, "1bffffffffffffffff"), (-1, "20"), (-24, "37"), (-25, "3818"), (-1000, "3903e7"),
    ],
)  # fmt: skip
def test_integers_take_their_shortest_form(value: int, encoded: str) -> None:
    assert cbor.integer(value).hex() == encoded  # RFC 8949, section 3.1 and appendix A


def test_what_does_not_fit_64_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="needs more than 64 bits"):
        cbor.integer(2**64)


def test_keys_are_arrays_of_typed_items() -> None:
    assert cbor.keys(None).hex() == "f6"
    assert cbor.keys(()).hex() == "80"
    assert cbor.keys((("mm", "a", -2), ("e", b"\x01\x02"))).hex() == "8283626d6d61612182616542" + "0102"


token = st.one_of(
    st.sampled_from(EDGES), st.integers(0, 300), st.integers(0, 70_000), st.integers(0, 2**31 - 1)
)


@given(st.integers(1, 60), st.data(), st.booleans())
def test_whole_runs_are_encoded_as_one_by_one(block_size: int, data: st.DataObject, negative: bool) -> None:
    count = data.draw(st.integers(1, 4)) * block_size
    tokens = data.draw(st.lists(token, min_size=count, max_size=count))
    if negative:
        tokens[data.draw(st.integers(0, count - 1))] = data.draw(st.integers(-(2**31), -1))
    run = CacheRequest("r", tokens).run(0, count)
    one_by_one = [cbor.integer(value) for value in tokens]
    expected = [b"".join(one_by_one[at : at + block_size]) for at in range(0, count, block_size)]
    assert cbor.blocks_of(run, block_size) == expected


def test_small_tokens_alone_need_no_wide_records() -> None:
    for tokens in ([5] * 8, [300] * 8, [5, 300] * 4, [70_000] * 8, [5, 70_000, 300, 25] * 2):
        run = CacheRequest("r", tokens).run(0, 8)
        assert b"".join(cbor.blocks_of(run, 4)) == b"".join(map(cbor.integer, tokens))
