from __future__ import annotations

import pytest
import torch

from headstart.cache import BlockCopy
from headstart.errors import EngineError
from headstart.model.kv_pool import KVPool
from tests.tiny_llama import CPU, make_pool, tiny_spec


def filled_pool() -> KVPool:
    """Six blocks of 4 slots; each number says where it stands."""
    pool = make_pool(tiny_spec(), 6)
    pool.keys.copy_(torch.arange(pool.keys.numel()).view_as(pool.keys))
    pool.values.copy_(-pool.keys)
    return pool


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_allocation_is_what_the_spec_says(dtype: torch.dtype) -> None:
    spec = tiny_spec()
    pool = make_pool(spec, 100, dtype=dtype)
    assert pool.nbytes == pytest.approx(100 * 4 * spec.kv_bytes_per_token(dtype.itemsize), rel=0.02)
    assert pool.nbytes == 2 * pool.keys.numel() * dtype.itemsize


def test_smollm2_takes_23040_bytes_a_token_in_bfloat16() -> None:
    spec = tiny_spec(num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64)
    pool = KVPool(spec, num_blocks=10, block_size=16, dtype=torch.bfloat16, device=CPU)
    assert pool.nbytes == 160 * 23_040


def test_what_is_written_is_read_in_the_order_of_the_blocks() -> None:
    pool = make_pool(tiny_spec(), 6)
    k, v = torch.randn(2, 7, 2, 16)
    blocks = torch.tensor([5, 0])
    slots = torch.tensor([20, 21, 22, 23, 0, 1, 2])
    pool.write(1, slots, k, v)
    read_k, read_v = pool.read(1, blocks, 7)
    assert torch.equal(read_k, k)
    assert torch.equal(read_v, v)
    assert torch.equal(pool.slots(1)[0][slots], k)
    assert torch.equal(pool.slots(1)[1][slots], v)
    assert pool.keys[0].count_nonzero() == 0  # the other layer
    assert pool.keys[1].count_nonzero() == k.count_nonzero()


def test_a_copy_takes_only_so_many_slots_in_every_layer() -> None:
    pool = filled_pool()
    keys, values = pool.keys.clone(), pool.values.clone()
    pool.copy_blocks([BlockCopy(src=1, dst=4, num_tokens=3)])
    for after, before in ((pool.keys, keys), (pool.values, values)):
        assert torch.equal(after[:, 4, :3], before[:, 1, :3])
        assert torch.equal(after[:, 4, 3], before[:, 4, 3])
        untouched = [0, 1, 2, 3, 5]
        assert torch.equal(after[:, untouched], before[:, untouched])


def test_all_sources_are_read_before_any_destination_is_written() -> None:
    pool = filled_pool()
    before = pool.keys.clone()
    chain = [BlockCopy(0, 1, 4), BlockCopy(1, 2, 2), BlockCopy(2, 0, 1), BlockCopy(5, 5, 4)]
    pool.copy_blocks(chain)
    assert torch.equal(pool.keys[:, 1], before[:, 0])
    assert torch.equal(pool.keys[:, 2, :2], before[:, 1, :2])
    assert torch.equal(pool.keys[:, 0, :1], before[:, 2, :1])
    assert torch.equal(pool.keys[:, 5], before[:, 5])


def test_no_copies_is_nothing() -> None:
    pool = filled_pool()
    before = pool.keys.clone()
    pool.copy_blocks(())
    assert torch.equal(pool.keys, before)


def test_more_than_the_machine_has_is_one_sentence_with_the_bytes() -> None:
    spec = tiny_spec()
    asked = 10**12 * 4 * spec.kv_bytes_per_token(4)
    with pytest.raises(EngineError, match=f"needs {asked:,} bytes on cpu but .* bytes are free"):
        KVPool(spec, num_blocks=10**12, block_size=4, dtype=torch.float32, device=CPU)


def test_an_allocation_that_fails_is_one_sentence_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(EngineError, match=r"the KV cache needs 49,152 bytes .* the allocation failed"):
        make_pool(tiny_spec(), 24)
