from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headstart.errors import CorruptModelError, UnsupportedModelError
from headstart.model.gguf_file import GGUFFile
from headstart.model.source import ModelFiles, resolve
from headstart.model.spec import SUPPORTED_ARCHITECTURES, Llama3RopeScaling, ModelSpec, read_spec

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "eos_token_id": [128001, 128008, 128009],
}
LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in CONFIG.items() if name not in names}


# Hugging Face


def test_config_of_transformers_4() -> None:
    spec = ModelSpec.from_config(CONFIG | {"rope_scaling": LLAMA3 | {"rope_type": "llama3"}})
    assert spec == ModelSpec(
        architecture="llama",
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        rope_scaling=Llama3RopeScaling(32.0, 1.0, 4.0, 8192),
        max_position_embeddings=131072,
        tie_word_embeddings=True,
        eos_token_ids=frozenset({128001, 128008, 128009}),
    )


def test_config_of_transformers_5_says_the_same() -> None:
    old = CONFIG | {"rope_scaling": LLAMA3 | {"rope_type": "llama3"}}
    new = without("rope_theta") | {
        "rope_parameters": LLAMA3 | {"rope_type": "llama3", "rope_theta": 500000.0}
    }
    assert ModelSpec.from_config(new) == ModelSpec.from_config(old)


def test_older_spelling_of_the_rope_type() -> None:
    spec = ModelSpec.from_config(CONFIG | {"rope_scaling": LLAMA3 | {"type": "llama3"}})
    assert spec.rope_scaling == Llama3RopeScaling(32.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize("scaling", [{}, {"rope_scaling": None}, {"rope_scaling": {"rope_type": "default"}}])
def test_no_rope_scaling(scaling: dict[str, Any]) -> None:
    spec = ModelSpec.from_config(CONFIG | scaling)
    assert spec.rope_scaling is None
    assert spec.rope_theta == 500000.0


@pytest.mark.parametrize("architecture", SUPPORTED_ARCHITECTURES)
def test_defaults_are_those_of_transformers(architecture: str) -> None:
    from transformers import AutoConfig

    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    config = {name: CONFIG[name] for name in needed} | {"sliding_window": None}
    spec = ModelSpec.from_config(config | {"model_type": architecture})
    theirs = AutoConfig.for_model(architecture, **config)
    assert spec.num_kv_heads == theirs.num_key_value_heads
    assert spec.head_dim == getattr(theirs, "head_dim", 2048 // 32)
    assert spec.rms_norm_eps == theirs.rms_norm_eps
    assert spec.rope_theta == theirs.rope_parameters["rope_theta"]
    assert spec.max_position_embeddings == theirs.max_position_embeddings
    assert spec.tie_word_embeddings == theirs.tie_word_embeddings
    rotates = getattr(theirs, "no_rope_layers", [1] * 16)
    assert spec.no_rope_layers == {index for index in range(16) if not rotates[index]}


@pytest.mark.parametrize("value", [None, []])
def test_no_eos_token(value: object) -> None:
    assert ModelSpec.from_config(CONFIG | {"eos_token_id": value}).eos_token_ids == frozenset()


@pytest.mark.parametrize("architecture", ["mamba", None, "LLaMA"])
def test_unknown_architecture_is_named(architecture: str | None) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{architecture!r} is not supported; supported: llama"):
        ModelSpec.from_config(CONFIG | {"model_type": architecture})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("sliding_window", 4096),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("layer_types", "sliding_attention"),
        ("partial_rotary_factor", 0.5),
        ("quantization_config", {"quant_method": "awq"}),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("rope_parameters", {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}),
        ("rope_parameters", {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}),
    ],
)
def test_options_that_change_the_result_are_refused(option: str, value: object) -> None:
    with pytest.raises(UnsupportedModelError, match="not supported") as caught:
        ModelSpec.from_config(CONFIG | {option: value})
    assert "config.json" in str(caught.value)


def test_unknown_architecture_hears_of_all_that_are_supported() -> None:
    with pytest.raises(UnsupportedModelError, match=r"supported: llama, mistral, qwen2, qwen3, smollm3$"):
        ModelSpec.from_config(CONFIG | {"model_type": "gemma3"})


WINDOWED = {"use_sliding_window": True, "sliding_window": 4096}


@pytest.mark.parametrize("architecture", ["mistral", "qwen2", "qwen3", "smollm3"])
def test_a_real_sliding_window_is_refused(architecture: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"sliding_window = 4096 is not supported; .* of 131072"):
        ModelSpec.from_config(CONFIG | WINDOWED | {"model_type": architecture})


@pytest.mark.parametrize("architecture", ["mistral", "qwen2", "qwen3"])
def test_a_window_that_the_config_leaves_out_is_the_one_of_transformers(architecture: str) -> None:
    with pytest.raises(UnsupportedModelError, match="sliding_window = 4096 is not supported"):
        ModelSpec.from_config(CONFIG | {"model_type": architecture, "use_sliding_window": True})


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 131072}),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": False}),
        ("qwen3", {"sliding_window": 4096}),
        ("qwen3", {"layer_types": ["full_attention"] * 16}),
    ],
)
def test_attention_over_the_whole_context_is_served(architecture: str, options: dict[str, Any]) -> None:
    spec = ModelSpec.from_config(CONFIG | options | {"model_type": architecture})
    assert spec.max_position_embeddings == 131072


@pytest.mark.parametrize("architecture", ["mistral", "qwen3", "smollm3"])
def test_biases_that_are_not_computed_are_refused(architecture: str) -> None:
    config = CONFIG | {"model_type": architecture, "sliding_window": None, "attention_bias": True}
    with pytest.raises(UnsupportedModelError, match="attention_bias = True is not supported"):
        ModelSpec.from_config(config)


def test_layers_without_rotation() -> None:
    config = CONFIG | {"model_type": "smollm3"}
    assert ModelSpec.from_config(config).no_rope_layers == {3, 7, 11, 15}
    assert ModelSpec.from_config(config | {"no_rope_layer_interval": 6}).no_rope_layers == {5, 11}
    listed = config | {"no_rope_layers": [1, 0] + [1] * 14}
    assert ModelSpec.from_config(listed).no_rope_layers == {1}
    with pytest.raises(CorruptModelError, match=r"no_rope_layers must list 16 layers, not be \[1, 0\]"):
        ModelSpec.from_config(config | {"no_rope_layers": [1, 0]})


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("hidden_size", "wide", "hidden_size must be a positive integer, not 'wide'"),
        ("num_hidden_layers", 0, "num_hidden_layers must be a positive integer, not 0"),
        ("num_attention_heads", True, "must be a positive integer, not True"),
        ("rms_norm_eps", -1.0, "rms_norm_eps must be a positive number, not -1.0"),
        ("rope_theta", "big", "rope_theta must be a positive number, not 'big'"),
        ("vocab_size", None, "vocab_size is missing"),
        ("num_key_value_heads", 5, "32 attention heads cannot share 5 KV heads evenly"),
        ("head_dim", 63, "an even head size, not 63"),
        ("eos_token_id", "</s>", "eos_token_id must be a token id"),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0}, "low_freq_factor is missing"),
    ],
)
def test_senseless_values(option: str, value: object, message: str) -> None:
    with pytest.raises(CorruptModelError, match=message):
        ModelSpec.from_config(CONFIG | {option: value})


def test_generation_config_adds_end_tokens(tiny_llama_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    files = ModelFiles("x", "safetensors", (), tmp_path, tmp_path / "config.json")
    assert read_spec(files).eos_token_ids == {128001, 128008, 128009}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert read_spec(files).eos_token_ids == {7, 128001, 128008, 128009}


@pytest.mark.parametrize(("text", "message"), [("{", "is not valid JSON"), ("[]", "is not a JSON object")])
def test_config_that_is_no_json_object(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CorruptModelError, match=message):
        read_spec(ModelFiles("x", "safetensors", (), tmp_path, tmp_path / "config.json"))


def test_saved_model(tiny_llama_untied_dir: Path) -> None:
    spec = read_spec(resolve(str(tiny_llama_untied_dir)))
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (3, 4, 2, 16)
    assert not spec.tie_word_embeddings
    assert spec.eos_token_ids == {2}


# GGUF


def test_smollm2(smollm2: ModelFiles) -> None:
    spec = read_spec(smollm2)
    assert spec == ModelSpec(
        architecture="llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        rms_norm_eps=pytest.approx(1e-5),
        rope_theta=100_000.0,
        rope_scaling=None,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        eos_token_ids=frozenset({2}),
    )
    assert spec.kv_bytes_per_token(2) == 23_040


def test_gguf_metadata(write_gguf) -> None:
    spec = ModelSpec.from_gguf(GGUFFile.read(write_gguf()))
    assert (spec.hidden_size, spec.intermediate_size, spec.num_layers) == (64, 96, 2)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (4, 2, 16)
    assert (spec.rope_theta, spec.max_position_embeddings, spec.vocab_size) == (5000.0, 256, 512)
    assert spec.tie_word_embeddings
    assert not ModelSpec.from_gguf(GGUFFile.read(write_gguf(tied=False))).tie_word_embeddings


@pytest.mark.parametrize(
    ("architecture", "more"),
    [
        ("qwen2", {"qkv_bias": True}),
        ("qwen3", {"qk_norm": True}),
        ("smollm3", {"no_rope_layers": frozenset({3, 7})}),
    ],
)
def test_gguf_of_each_family(write_gguf, architecture: str, more: dict[str, Any]) -> None:
    llama = ModelSpec.from_gguf(GGUFFile.read(write_gguf(metadata={"llama.block_count": 8})))
    path = write_gguf(architecture=architecture, metadata={f"{architecture}.block_count": 8})
    expected = dataclasses.replace(llama, architecture=architecture, **more)
    assert ModelSpec.from_gguf(GGUFFile.read(path)) == expected


def test_gguf_window_over_the_whole_context(write_gguf) -> None:
    header = GGUFFile.read(write_gguf(metadata={"llama.attention.sliding_window": 256}))
    assert ModelSpec.from_gguf(header).max_position_embeddings == 256


def test_gguf_names_of_architectures_are_llama_cpps(write_gguf) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'mistral' .* supported: llama, qwen2, qwen3, smollm3$"):
        ModelSpec.from_gguf(GGUFFile.read(write_gguf(architecture="mistral")))


def test_gguf_defaults(write_gguf) -> None:
    absent = ("attention.head_count_kv", "rope.freq_base", "rope.dimension_count", "vocab_size")
    spec = ModelSpec.from_gguf(GGUFFile.read(write_gguf(metadata={f"llama.{name}": None for name in absent})))
    assert (spec.num_kv_heads, spec.rope_theta, spec.head_dim, spec.vocab_size) == (4, 10_000.0, 16, 512)


def test_gguf_head_size_of_its_own(write_gguf) -> None:
    sizes = {"attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 32}
    path = write_gguf(metadata={f"llama.{name}": value for name, value in sizes.items()})
    assert ModelSpec.from_gguf(GGUFFile.read(path)).head_dim == 32


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("expert_count", 8),
        ("attention.sliding_window", 128),
        ("rope.scaling.type", "yarn"),
        ("rope.scaling.type", "linear"),
        ("rope.dimension_count", 8),
        ("attention.value_length", 8),
    ],
)
def test_gguf_options_that_change_the_result_are_refused(write_gguf, option: str, value: object) -> None:
    header = GGUFFile.read(write_gguf(metadata={f"llama.{option}": value}))
    with pytest.raises(UnsupportedModelError, match=f"{option} = {value!r} is not supported"):
        ModelSpec.from_gguf(header)


def test_gguf_of_another_architecture(write_gguf) -> None:
    with pytest.raises(UnsupportedModelError, match="'falcon' is not supported; supported: llama"):
        ModelSpec.from_gguf(GGUFFile.read(write_gguf(architecture="falcon")))


def test_gguf_without_a_needed_value(write_gguf) -> None:
    header = GGUFFile.read(write_gguf(metadata={"llama.block_count": None}))
    with pytest.raises(CorruptModelError, match="block_count is missing"):
        ModelSpec.from_gguf(header)


def rotary_divisors(factor: float, low: float = 1.0) -> np.ndarray:
    """What transformers divides the rotary frequencies of a 128-wide head by, under llama3 scaling."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = LLAMA3 | {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "rope_theta": 5e5}
    config = LlamaConfig(head_dim=128, rope_parameters=rope, max_position_embeddings=131072)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
    plain = 1.0 / 5e5 ** (np.arange(0, 128, 2) / 128)
    return (plain / scaled.numpy()).astype(np.float32)


WIDE = {
    "llama.rope.freq_base": 5e5,
    "llama.attention.key_length": 128,
    "llama.attention.value_length": 128,
    "llama.rope.dimension_count": 128,
}


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recovered_from_its_divisors(write_gguf, factor: float) -> None:
    path = write_gguf(metadata=WIDE, tensors={"rope_freqs.weight": rotary_divisors(factor)})
    scaling = ModelSpec.from_gguf(GGUFFile.read(path)).rope_scaling
    assert scaling == Llama3RopeScaling(pytest.approx(factor), 1.0, 4.0, 8192)


def test_divisors_of_another_scaling_are_refused(write_gguf) -> None:
    path = write_gguf(metadata=WIDE, tensors={"rope_freqs.weight": rotary_divisors(8.0, low=2.0)})
    with pytest.raises(UnsupportedModelError, match=r"rope_freqs\.weight is not the scaling"):
        ModelSpec.from_gguf(GGUFFile.read(path))
