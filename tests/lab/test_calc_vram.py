from __future__ import annotations

import pytest

from headstart.errors import ConfigError, UnsupportedModelError
from headstart.lab.calc.find import find_shape
from headstart.lab.calc.read_config import read_config
from headstart.lab.calc.vram import Load, Machine, Storage, fit, footprint, weights_bytes

GIB = 1 << 30


def test_weights_in_bytes() -> None:
    assert weights_bytes(find_shape("llama-3.1-8b"), Storage()) == 2 * 8_030_261_248
    assert weights_bytes(find_shape("llama-3.1-8b"), Storage(dtype="float32")) == 4 * 8_030_261_248
    assert weights_bytes(find_shape("llama-3.1-8b"), Storage(weights_bytes=5)) == 5


def test_the_bytes_of_a_published_quantised_checkpoint() -> None:
    # the index of openai/gpt-oss-20b's shards: total_size
    assert weights_bytes(find_shape("gpt-oss-20b"), Storage()) == 13_761_264_768
    assert weights_bytes(find_shape("gpt-oss-20b"), Storage(quantization="none")) == 2 * 20_914_757_184


def test_quantisation_leaves_embeddings_and_norms_alone() -> None:
    shape = find_shape("smollm2-135m")
    matrices = 30 * (2 * 576 * (576 + 192) + 3 * 576 * 1536)
    kept = 134_515_008 - matrices
    assert weights_bytes(shape, Storage(quantization="fp8")) == 2 * kept + matrices
    assert (
        weights_bytes(shape, Storage(quantization="int4")) == 2 * kept + matrices * (4 * 128 + 20) // 128 // 8
    )


def test_what_fits_by_hand() -> None:
    shape, load = find_shape("llama-3.1-8b"), Load(8192, 4096, 16)
    taken = footprint(shape, Storage(), load)
    assert (taken.sequence, taken.shared_prefix, taken.sequence_behind_prefix) == (GIB, GIB // 2, GIB // 2)
    room = fit(taken, Machine(24 * GIB, 0.9, 3 * GIB // 2), load)
    assert room.kv_cache == int(24 * GIB * 0.9) - 2 * 8_030_261_248 - 3 * GIB // 2
    assert room.num_blocks == room.kv_cache // (16 * 131_072)
    assert room.num_tokens == 16 * room.num_blocks
    assert room.num_sequences == room.num_sequences_all_kept == 5
    assert room.num_sharing == 9  # 5.14 GiB: the prefix's half, and nine times the other half


def test_a_part_of_a_block_takes_a_block_and_is_not_shared() -> None:
    shape = find_shape("smollm2-135m")
    taken = footprint(shape, Storage(), Load(40, 33, 16))
    block = 16 * 23_040
    assert (taken.sequence, taken.shared_prefix, taken.sequence_behind_prefix) == (
        3 * block,
        2 * block,
        block,
    )


def test_the_last_token_is_each_ones_own() -> None:
    taken = footprint(find_shape("smollm2-135m"), Storage(), Load(32, 32, 16))
    assert taken.sequence_behind_prefix == 16 * 23_040


def test_windows_let_go() -> None:
    shape, layer = find_shape("gemma-2-9b"), 2 * 8 * 512
    taken = footprint(shape, Storage(), Load(8192, 0, 16))
    assert taken.sequence == 21 * layer * (8192 + 4096)
    assert footprint(shape, Storage(), Load(4096, 0, 16)).sequence == 42 * layer * 4096
    room = fit(taken, Machine(64 * GIB, 1.0, 0), Load(8192, 0, 16))
    assert room.num_sequences_all_kept == room.num_tokens // 8192 == room.kv_cache // (42 * layer * 8192)
    assert room.num_sequences == room.kv_cache // (21 * layer * 12_288)


def test_a_window_that_begins_inside_a_block_needs_that_block() -> None:
    config = {
        "model_type": "mistral",
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "sliding_window": 8,
    }
    shape = read_config(config, "one", "a test")
    block = 4 * 2 * 8 * 2
    sizes = [footprint(shape, Storage(), Load(n, 0, 4)).sequence // block for n in (4, 8, 12, 13, 15, 16)]
    assert sizes == [1, 2, 2, 3, 3, 2]
    # 20 tokens, 12 shared: the window behind them reaches back to token 12, so nothing shared is read any
    # more, but the next request needs the 8 tokens before the prefix's end
    behind = footprint(shape, Storage(), Load(20, 12, 4))
    assert (behind.shared_prefix // block, behind.sequence_behind_prefix // block) == (2, 2)


def test_no_room_is_zero_and_never_less() -> None:
    load = Load(8192)
    room = fit(footprint(find_shape("llama-3.1-70b"), Storage(), load), Machine(24 * GIB, 0.9, 0), load)
    assert (room.kv_cache, room.num_blocks, room.num_sequences, room.num_sharing) == (0, 0, 0, 0)


def test_several_gpus() -> None:
    load = Load(8192)
    taken = footprint(find_shape("llama-3.1-70b"), Storage(kv_cache_dtype="fp8"), load, 4)
    assert taken.weights == 70_553_706_496 * 2 // 4
    assert taken.kv_per_token == 160 * 1024 // 4
    with pytest.raises(ConfigError, match="8 KV heads cannot be divided among 3 GPUs"):
        footprint(find_shape("llama-3.1-70b"), Storage(), load, 3)


def test_what_cannot_be() -> None:
    unknown = read_config({"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 3}, "old", "a test")
    with pytest.raises(UnsupportedModelError, match=r"architecture 'gpt2' cannot be counted .* --weights"):
        footprint(unknown, Storage(), Load(10))
    assert footprint(unknown, Storage(weights_bytes=7), Load(10)).weights == 7
    with pytest.raises(ConfigError, match="11 of 10 tokens cannot be"):
        Load(10, 11)
    with pytest.raises(ConfigError, match="--dtype must be one of auto, float32"):
        weights_bytes(find_shape("smollm2-135m"), Storage(dtype="int3"))
