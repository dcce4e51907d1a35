"""How `SdpaAttention` sorts its work; what it computes is the contract suite's affair."""

from __future__ import annotations

import pytest
import torch

from headstart.model.attention import SdpaAttention
from headstart.model.attention.work import Chunk, Group, Shared
from headstart.model.batch import ForwardBatch, SequenceSpan
from tests.tiny_llama import make_pool, tiny_spec


def batch_of(*sequences: tuple[int, int, list[int]]) -> ForwardBatch:
    """(context length, query length, block ids) of each sequence."""
    spans, start = [], 0
    for context, queries, blocks in sequences:
        spans.append(SequenceSpan(start, queries, context, torch.tensor(blocks)))
        start += queries
    unread = torch.zeros(0, dtype=torch.int64)
    return ForwardBatch(unread, unread, unread, tuple(spans), unread)


@pytest.mark.parametrize(
    ("blocks", "context", "gathered"),
    [
        ([5, 6, 7, 8], 14, 0),
        ([5, 6, 7, 2], 12, 0),  # the last block is not part of the context
        ([5, 6, 8, 9], 14, 4),
        ([5, 4, 3, 2], 14, 4),
        ([5, 7, 6, 8], 14, 4),  # ends where a run would
    ],
)
def test_one_run_of_blocks_is_read_in_place(blocks: list[int], context: int, gathered: int) -> None:
    pool = make_pool(tiny_spec(), 10)
    for queries in (1, 3):
        step = SdpaAttention().prepare(batch_of((context, queries, blocks)), pool)
        assert step.kv.scratch[0].shape[0] == gathered


def test_padding_is_bounded_and_so_is_scratch() -> None:
    pool = make_pool(tiny_spec(num_layers=1, num_kv_heads=1), 4000, block_size=16)
    contexts = [16_000, 900, 15_000, 17, 800, 7_000, 40, 16_000, 20_000, 9_000]
    blocks = list(range(0, 3998, 2))
    batch = batch_of(*((c, 1, [i, *blocks[i : i - 1 - c // -16]]) for i, c in enumerate(contexts)))
    step = SdpaAttention().prepare(batch, pool)
    padded = sum(16 * item.gathered_blocks for item in step.work)
    assert sum(contexts) <= padded <= 2 * sum(contexts)
    assert 16 * step.kv.scratch[0].shape[0] <= 33_000
    assert len(step.work) < len(contexts)


def test_many_rows_of_one_length_need_few_calls() -> None:
    pool = make_pool(tiny_spec(num_layers=1, num_kv_heads=1), 80, block_size=16)
    step = SdpaAttention().prepare(batch_of(*((1200 + i, 1, list(range(79))) for i in range(64))), pool)
    assert len(step.work) <= 3


def test_scratch_is_reused() -> None:
    pool = make_pool(tiny_spec(), 10)
    attention = SdpaAttention()
    large = attention.prepare(batch_of((14, 1, [1, 3, 5, 7]), (14, 1, [2, 3, 5, 7])), pool)
    small = attention.prepare(batch_of((6, 2, [1, 3])), pool)
    assert small.kv.scratch[0].data_ptr() == large.kv.scratch[0].data_ptr()


def test_the_mask_is_as_tall_as_a_tile_and_as_wide_as_the_longest_chunk() -> None:
    pool = make_pool(tiny_spec(num_layers=1, num_kv_heads=1), 300, block_size=16)
    blocks = list(range(250))
    for sequences, shape in (
        ([(3000, 2000, blocks)], (256, 3000)),
        ([(4000, 1, blocks), (90, 30, blocks)], (30, 90)),
    ):
        chunk = SdpaAttention().prepare(batch_of(*sequences), pool).work[0]
        assert isinstance(chunk, Chunk)
        assert chunk.mask.shape == shape


@pytest.mark.parametrize(("dtype", "kind"), [(torch.float32, Shared), (torch.bfloat16, Group)])
def test_parts_are_merged_only_where_they_agree_with_a_whole(dtype: torch.dtype, kind: type) -> None:
    pool = make_pool(tiny_spec(), 10, dtype=dtype)
    step = SdpaAttention(least_saved=1).prepare(batch_of((14, 1, [1, 3, 5, 7]), (14, 1, [1, 3, 5, 8])), pool)
    assert [type(work) for work in step.work] == [kind]
