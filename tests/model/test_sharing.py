from __future__ import annotations

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from headstart.model.attention.sharing import Sharing, find_sharing
from headstart.model.batch import SequenceSpan

BLOCK_SIZE = 4


def spans(*tables: list[int], last_block: int = 1) -> list[SequenceSpan]:
    """A decoding sequence for each table, with ``last_block`` tokens in its last block."""
    return [
        SequenceSpan(row, 1, BLOCK_SIZE * (len(table) - 1) + last_block, torch.tensor(table))
        for row, table in enumerate(tables)
    ]


def readable(sharing: Sharing) -> tuple[list[tuple[list[int], list[int]]], dict[int, list[int]]]:
    """Each stretch's rows and blocks, and each row's tail."""
    rows = [sequence.query_start for sequence in sharing.sequences]
    stretches = sorted(
        (sorted(rows[stretch.first : stretch.last]), stretch.block_ids.tolist())
        for stretch in sharing.stretches
    )
    tails = {tail.query_start: tail.block_ids.tolist() for tail in sharing.tails}
    return stretches, tails


def test_a_common_prefix_is_contiguous() -> None:
    sharing = find_sharing(spans([7, 3, 5, 1], [7, 3, 5, 2], [7, 3, 5, 4]), BLOCK_SIZE, 1)
    assert readable(sharing) == ([([0, 1, 2], [7, 3, 5])], {0: [1], 1: [2], 2: [4]})
    assert sharing.depth == 1
    assert [tail.context_length for tail in sharing.tails] == [1, 1, 1]


def test_prefixes_within_prefixes() -> None:
    sharing = find_sharing(
        spans([1, 2, 3, 4, 10], [1, 2, 3, 4, 11], [1, 2, 5, 12], [1, 2, 5, 13], [1, 14], [9, 15]),
        BLOCK_SIZE,
        least_saved=1,
    )
    stretches, tails = readable(sharing)
    assert stretches == [([0, 1], [3, 4]), ([0, 1, 2, 3], [2]), ([0, 1, 2, 3, 4], [1]), ([2, 3], [5])]
    assert tails == {0: [10], 1: [11], 2: [12], 3: [13], 4: [14]}
    assert [sequence.query_start for sequence in sharing.apart] == [5]
    assert sharing.depth == 3


def test_a_stretch_that_saves_too_little_joins_the_next_one() -> None:
    tables = [1, 2, 3, 4, 10], [1, 2, 3, 4, 11], [1, 12]
    assert readable(find_sharing(spans(*tables), BLOCK_SIZE, 9)) == (
        [([0, 1], [1, 2, 3, 4])],
        {0: [10], 1: [11]},
    )
    assert find_sharing(spans(*tables), BLOCK_SIZE, 17).stretches == ()


def test_the_block_of_a_query_is_never_shared() -> None:
    for last_block in (1, BLOCK_SIZE):
        sharing = find_sharing(spans([1, 2], [1, 2], last_block=last_block), BLOCK_SIZE, 1)
        assert readable(sharing) == ([([0, 1], [1])], {0: [2], 1: [2]})
        assert [tail.context_length for tail in sharing.tails] == [last_block] * 2


def test_nothing_to_share() -> None:
    for tables in ((), ([1, 2],), ([1, 2], [3, 2]), ([1], [1])):
        sharing = find_sharing(spans(*tables), BLOCK_SIZE, 1)
        assert sharing.stretches == sharing.sequences == sharing.tails == ()
        assert len(sharing.apart) == len(tables)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=8),
    st.integers(1, 40),
    st.randoms(use_true_random=False),
)
def test_stretches_and_tails_make_up_each_table(
    tables: list[list[int]], least_saved: int, random: random.Random
) -> None:
    sequences = spans(*tables, last_block=random.randint(1, BLOCK_SIZE))
    sharing = find_sharing(sequences, BLOCK_SIZE, least_saved)
    everyone = [sequence.query_start for sequence in (*sharing.sequences, *sharing.apart)]
    assert sorted(everyone) == list(range(len(tables)))
    for place, (sequence, tail) in enumerate(zip(sharing.sequences, sharing.tails, strict=True)):
        stretches = sorted(
            (stretch for stretch in sharing.stretches if stretch.first <= place < stretch.last),
            key=lambda stretch: stretch.depth,
        )
        assert [stretch.depth for stretch in stretches] == list(range(len(stretches)))
        assert stretches
        blocks = [block for stretch in stretches for block in stretch.block_ids.tolist()]
        assert blocks + tail.block_ids.tolist() == tables[sequence.query_start]
        assert len(blocks) * BLOCK_SIZE + tail.context_length == sequence.context_length
        assert tail.context_length >= 1
    for stretch in sharing.stretches:
        assert (stretch.last - stretch.first - 1) * len(stretch.block_ids) * BLOCK_SIZE >= least_saved
