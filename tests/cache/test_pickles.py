"""Pickles of whole runs of tokens, against CPython's own."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from headstart.cache import CacheRequest, pickles

EDGES = [0, 255, 256, 65535, 65536, 2**31 - 1, -1, -(2**31)]

token = st.one_of(st.sampled_from(EDGES), st.integers(0, 300), st.integers(0, 70_000))


@given(st.integers(pickles.LEAST_BLOCK, 60), st.sampled_from([16, 32]), st.data())
def test_it_is_what_pickle_writes(block_size: int, parent_size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4)) * block_size
    tokens = data.draw(st.lists(token, min_size=count, max_size=count))
    heads, parent = pickles.Heads(parent_size), bytes(range(parent_size))
    blocks = pickles.blocks_of(CacheRequest("r", tokens).run(0, count), block_size)
    assert [heads[len(b)] + parent + pickles.BEFORE_TOKENS + b + pickles.BEHIND for b in blocks] == [
        pickle.dumps((parent, tuple(tokens[at : at + block_size]), None), protocol=5)
        for at in range(0, count, block_size)
    ]


def test_the_longest_block_has_one_frame() -> None:
    tokens = [2**31 - 1] * pickles.MOST_BLOCK
    (block,) = pickles.blocks_of(CacheRequest("r", tokens).run(0, len(tokens)), len(tokens))
    whole = pickles.Heads(32)[len(block)] + bytes(32) + pickles.BEFORE_TOKENS + block + pickles.BEHIND
    assert whole == pickle.dumps((bytes(32), tuple(tokens), None), protocol=5)
