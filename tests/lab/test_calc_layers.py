"""KV bytes for a token, against figures that are published or worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from headstart.errors import CorruptModelError, UnsupportedModelError
from headstart.lab.calc.find import find_shape
from headstart.lab.calc.read_config import read_config
from headstart.lab.calc.shape import LayerGroup, Shape

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
}


def read(**options: Any) -> Shape:
    return read_config(SMALL | options, "small", "a test")


@pytest.mark.parametrize(
    ("name", "in_bytes"),
    [
        ("llama-3.1-8b", 128 * 1024),
        ("llama-3.1-70b", 320 * 1024),
        ("llama-3.2-1b", 32 * 1024),
        ("mistral-7b-v0.1", 128 * 1024),
        ("mistral-7b-v0.3", 128 * 1024),
        ("qwen2.5-7b", 56 * 1024),
        ("qwen3-8b", 144 * 1024),
        ("qwen3-30b-a3b", 96 * 1024),
        ("gemma-2-9b", 2 * 42 * 8 * 256 * 2),
        ("gemma-3-27b", 2 * 62 * 16 * 128 * 2),
        ("deepseek-v2-lite", (512 + 64) * 27 * 2),
        ("deepseek-v3", 70_272),
        ("phi-3-mini-4k", 384 * 1024),
        ("smollm2-135m", 23_040),
        ("gpt-oss-20b", 48 * 1024),
    ],
)
def test_sixteen_bits_a_token(name: str, in_bytes: int) -> None:
    assert 2 * find_shape(name).elements_per_token() == in_bytes


@pytest.mark.parametrize(
    ("name", "in_bytes"),
    [
        ("llama-3.1-8b", 131_072),  # no windows
        ("mistral-7b-v0.1", 0),  # nothing but windows
        ("gemma-2-9b", 21 * 8 * 512 * 2),  # every second layer
        ("gemma-3-27b", 10 * 16 * 256 * 2),  # layers 6, 12 … 60
        ("gpt-oss-20b", 12 * 8 * 128 * 2),
    ],
)
def test_beyond_the_windows(name: str, in_bytes: int) -> None:
    assert 2 * find_shape(name).elements_per_token(beyond_windows=True) == in_bytes


def test_grouped_and_multi_query_attention() -> None:
    assert read().elements_per_token() == 6 * 4 * 16  # as many KV heads as heads
    assert read(num_key_value_heads=2).elements_per_token() == 6 * 2 * 16
    assert read(num_key_value_heads=1).elements_per_token() == 6 * 16
    assert read(model_type="falcon", multi_query=True).elements_per_token() == 6 * 16
    falcon = read(model_type="falcon", multi_query=True, new_decoder_architecture=True, num_kv_heads=2)
    assert falcon.elements_per_token() == 6 * 2 * 16


def test_older_names_of_sizes() -> None:
    shape = read_config({"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 3}, "old", "a test")
    assert shape.groups == (LayerGroup(3, 4, 16),)
    assert shape.parameters is None


def test_layer_types_say_what_each_layer_keeps() -> None:
    kinds = ["sliding_attention", "full_attention", "linear_attention", "mamba", "chunked_attention", "conv"]
    shape = read(layer_types=kinds, sliding_window=128, attention_chunk_size=512)
    assert shape.groups == (LayerGroup(1, 4, 16, 128), LayerGroup(1, 4, 16), LayerGroup(1, 4, 16, 512))
    assert shape.parameters is None
    assert "3 of 6 layers have no KV cache" in shape.notes[0]


def test_windows_where_nothing_lists_them() -> None:
    def windows(**options: Any) -> list[tuple[int, int | None]]:
        groups = read(**{"sliding_window": 64, "num_key_value_heads": 2} | options).groups
        return [(group.num_layers, group.window) for group in groups]

    assert windows(model_type="mistral") == [(6, 64)]
    assert windows(model_type="gemma2") == [(3, 64), (3, None)]
    assert windows(model_type="gemma3_text") == [(5, 64), (1, None)]
    assert windows(model_type="gemma3_text", sliding_window_pattern=3) == [(4, 64), (2, None)]
    assert windows(model_type="qwen2") == [(6, None)]  # off unless use_sliding_window
    assert windows(model_type="qwen2", use_sliding_window=True, max_window_layers=4) == [(4, None), (2, 64)]


def test_mistral_has_a_window_unless_its_config_says_null() -> None:
    mistral = {"model_type": "mistral", "num_key_value_heads": 2}
    assert read(**mistral).groups[0].window == 4096  # transformers' default
    assert read(**mistral, sliding_window=None).groups[0].window is None


def test_chunks() -> None:
    shape = read(model_type="llama4_text", attention_chunk_size=64)
    assert shape.groups == (LayerGroup(5, 4, 16, 64), LayerGroup(1, 4, 16))


def test_hybrids() -> None:
    qwen = read(model_type="qwen3_next", full_attention_interval=3)
    assert qwen.groups == (LayerGroup(2, 4, 16),)
    jamba = read(model_type="jamba", attn_layer_period=3, attn_layer_offset=1, mamba_d_state=16)
    assert jamba.groups == (LayerGroup(2, 4, 16),)
    with pytest.raises(UnsupportedModelError, match="ssm_cfg speaks of layers without a KV cache"):
        read(model_type="zamba", ssm_cfg={})
    with pytest.raises(UnsupportedModelError, match="no layer has a KV cache"):
        read(layer_types=["mamba"] * 6)


def test_layers_that_read_the_kv_of_others_keep_none() -> None:
    assert read(num_kv_shared_layers=2).elements_per_token() == 4 * 4 * 16


def test_latent_attention_keeps_one_vector() -> None:
    latent = {"kv_lora_rank": 8, "qk_rope_head_dim": 4, "model_type": "deepseek_new"}
    assert read(**latent).groups == (LayerGroup(6, 1, 12, is_latent=True),)
    assert read(**latent, index_head_dim=5).elements_per_token() == 6 * 17


def test_gpus_divide_heads_and_repeat_what_cannot_be_divided() -> None:
    shape = read(num_key_value_heads=2)
    assert [shape.elements_per_token(tensor_parallel=n) for n in (1, 2, 4)] == [192, 96, 96]
    assert find_shape("deepseek-v3").elements_per_token(tensor_parallel=16) == 576 * 61


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types must list 6 layers"),
        ({"layer_types": ["magic"] * 6}, "'magic', of which it is not known what it keeps"),
        ({"num_attention_heads": None}, "num_attention_heads is missing"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 KV heads evenly"),
        ({"num_hidden_layers": "six"}, "num_hidden_layers must be a positive integer, not 'six'"),
        ({"layer_types": ["sliding_attention"] * 6}, "sliding_window is missing"),
    ],
)
def test_senseless_configs(options: dict[str, Any], words: str) -> None:
    with pytest.raises((CorruptModelError, UnsupportedModelError), match=words):
        read(**options)
