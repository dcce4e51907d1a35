"""What a model's configuration says, as numbers: from a Hugging Face config or GGUF metadata.  No torch.

An option that would change what the model computes is understood or refused, never skipped.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headstart.errors import CorruptModelError, UnsupportedModelError
from headstart.model.checked import CheckedValues, read_json_object
from headstart.model.family import FAMILIES, Family
from headstart.model.gguf_file import GGUFFile
from headstart.model.source import ModelFiles

SUPPORTED_ARCHITECTURES = tuple(FAMILIES)


@dataclass(frozen=True, slots=True)
class Llama3RopeScaling:
    """Llama 3's stretching of the rotary wavelengths; names as in Hugging Face's ``rope_parameters``."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder's shape and constants, with Hugging Face's names.

    ``max_position_embeddings`` is the context length in tokens; ``eos_token_ids`` end an answer.
    ``qkv_bias`` and ``qk_norm`` are a `Family`'s; layers of ``no_rope_layers`` do not rotate q and k.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3RopeScaling | None
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_ids: frozenset[int]
    qkv_bias: bool = False
    qk_norm: bool = False
    no_rope_layers: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise CorruptModelError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} KV heads evenly"
            )
        if self.head_dim % 2:
            raise CorruptModelError(f"rotary embeddings need an even head size, not {self.head_dim}")

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Bytes of K and V that one token takes, all layers together."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_element

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelSpec:
        """The spec in a Hugging Face ``config.json``, of transformers 4 or 5.

        Raises `UnsupportedModelError` for an architecture or option that headstart does not compute,
        `CorruptModelError` for a missing or senseless value.
        """
        architecture = _supported(config.get("model_type"), FAMILIES)
        family = FAMILIES[architecture]
        config = {**family.defaults, **config}
        values = CheckedValues(config, "config.json")
        context_length = values.integer("max_position_embeddings")
        if config.get("use_sliding_window", True):
            values.refuse_window("sliding_window", context_length)
        _refuse_layer_types(config.get("layer_types"))
        values.refuse("hidden_act", "silu")
        values.refuse("quantization_config", None)
        values.refuse("partial_rotary_factor", 1)
        if not family.qkv_bias:  # else it is not an option: transformers' class has them anyway
            values.refuse("attention_bias", False)
        values.refuse("mlp_bias", False)
        hidden_size = values.integer("hidden_size")
        num_layers = values.integer("num_hidden_layers")
        num_heads = values.integer("num_attention_heads")
        rope = _rope_parameters(config)
        rope.refuse("partial_rotary_factor", 1)
        return cls(
            architecture=architecture,
            vocab_size=values.integer("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=values.integer("intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=values.integer("num_key_value_heads", num_heads),
            head_dim=values.integer("head_dim", hidden_size // num_heads),
            rms_norm_eps=values.number("rms_norm_eps", 1e-6),
            rope_theta=rope.number("rope_theta", family.rope_theta),
            rope_scaling=_rope_scaling(rope),
            max_position_embeddings=context_length,
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            eos_token_ids=_token_ids(config.get("eos_token_id")),
            qkv_bias=family.qkv_bias,
            qk_norm=family.qk_norm,
            no_rope_layers=_no_rope_layers(config, family, num_layers),
        )

    @classmethod
    def from_gguf(cls, header: GGUFFile) -> ModelSpec:
        """The spec in a GGUF file's metadata; raises as `from_config`."""
        in_gguf = [name for name, family in FAMILIES.items() if family.in_gguf]
        architecture = _supported(header.metadata.get("general.architecture"), in_gguf)
        family = FAMILIES[architecture]
        prefix = f"{architecture}."
        own = {
            key.removeprefix(prefix): value
            for key, value in header.metadata.items()
            if key.startswith(prefix)
        }
        values = CheckedValues(own, str(header.path))
        values.refuse("expert_count", 0)  # Mixtral calls itself llama here
        context_length = values.integer("context_length")
        values.refuse_window("attention.sliding_window", context_length)
        values.refuse("rope.scaling.type", "none")
        hidden_size = values.integer("embedding_length")
        num_layers = values.integer("block_count")
        num_heads = values.integer("attention.head_count")
        head_dim = values.integer("attention.key_length", hidden_size // num_heads)
        values.refuse("attention.value_length", head_dim)
        values.refuse("rope.dimension_count", head_dim)  # less would be a partial rotation
        return cls(
            architecture=architecture,
            vocab_size=values.integer("vocab_size", len(header.metadata.get("tokenizer.ggml.tokens", ()))),
            hidden_size=hidden_size,
            intermediate_size=values.integer("feed_forward_length"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=values.integer("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            rms_norm_eps=values.number("attention.layer_norm_rms_epsilon"),
            rope_theta=values.number("rope.freq_base", 10_000.0),
            rope_scaling=_rope_scaling_from_factors(header, values.number("rope.freq_base", 10_000.0)),
            max_position_embeddings=context_length,
            tie_word_embeddings="output.weight" not in header.tensors,
            eos_token_ids=header.eos_token_ids,
            qkv_bias=family.qkv_bias,
            qk_norm=family.qk_norm,
            no_rope_layers=_no_rope_layers({}, family, num_layers),  # llama.cpp has no key for it
        )


def read_spec(files: ModelFiles) -> ModelSpec:
    """The spec of a model on this machine; raises as `ModelSpec.from_config`."""
    if files.config is None:
        return ModelSpec.from_gguf(GGUFFile.read(files.weights[0]))
    config = read_json_object(files.config)
    # Chat models name their end-of-turn token here only.
    generation = files.config.with_name("generation_config.json")
    if generation.is_file():
        more = _token_ids(read_json_object(generation).get("eos_token_id"))
        config["eos_token_id"] = sorted(_token_ids(config.get("eos_token_id")) | more)
    return ModelSpec.from_config(config)


def _supported(architecture: object, known: Collection[str]) -> str:
    if architecture not in known:
        raise UnsupportedModelError(
            f"the architecture {architecture!r} is not supported; supported: {', '.join(known)}"
        )
    return str(architecture)


def _refuse_layer_types(kinds: object) -> None:
    if kinds is not None and not (isinstance(kinds, list) and {*map(str, kinds)} <= {"full_attention"}):
        shown = ", ".join(sorted({*map(str, kinds)})) if isinstance(kinds, list) else repr(kinds)
        raise UnsupportedModelError(
            f"config.json: layer_types has {shown}, which is not supported; only full_attention is"
        )


def _no_rope_layers(config: Mapping[str, Any], family: Family, num_layers: int) -> frozenset[int]:
    if family.no_rope_interval is None:
        return frozenset()
    rotates = config.get("no_rope_layers")  # its ones are the layers that do
    if rotates is None:
        values = CheckedValues(config, "config.json")
        interval = values.integer("no_rope_layer_interval", family.no_rope_interval)
        return frozenset(range(interval - 1, num_layers, interval))
    if not isinstance(rotates, list) or len(rotates) < num_layers:
        raise CorruptModelError(
            f"config.json: no_rope_layers must list {num_layers} layers, not be {rotates!r}"
        )
    return frozenset(index for index in range(num_layers) if not rotates[index])


def _rope_parameters(config: Mapping[str, Any]) -> CheckedValues:
    """Rotary options in one place: transformers 5 has ``rope_parameters``, 4 had two keys."""
    where = "config.json: rotary embedding"
    options = config.get("rope_parameters")
    if options is None:
        options = {"rope_theta": config.get("rope_theta")} | (config.get("rope_scaling") or {})
    if any(isinstance(value, Mapping) for value in options.values()):
        raise UnsupportedModelError(f"{where}: parameters that differ between layers are not supported")
    return CheckedValues(options, where)


def _rope_scaling(rope: CheckedValues) -> Llama3RopeScaling | None:
    kind = rope.text("rope_type", "type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise UnsupportedModelError(
            f"{rope.where}: scaling of type {kind!r} is not supported; supported: default, llama3"
        )
    return Llama3RopeScaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position_embeddings=rope.integer("original_max_position_embeddings"),
    )


def _rope_scaling_from_factors(header: GGUFFile, theta: float) -> Llama3RopeScaling | None:
    """The llama3 scaling that a ``rope_freqs.weight`` tensor was made from.

    GGUF stores its outcome, one divisor for each frequency, not its parameters.  All published Llama 3
    models share every parameter but the factor, which is the largest divisor: try that and compare.
    """
    tensor = header.tensors.get("rope_freqs.weight")
    if tensor is None:
        return None
    divisors = np.fromfile(header.path, "<f4", math.prod(tensor.shape), offset=tensor.offset)
    scaling = Llama3RopeScaling(float(divisors.max()), 1.0, 4.0, 8192)
    if not np.allclose(divisors, _llama3_divisors(scaling, theta, len(divisors)), rtol=1e-4):
        raise UnsupportedModelError(
            f"{header.path}: its rope_freqs.weight is not the scaling of a published Llama 3 model, "
            "the only kind supported in a GGUF file"
        )
    return scaling


def _llama3_divisors(scaling: Llama3RopeScaling, theta: float, count: int) -> np.ndarray:
    """What llama3 scaling divides each of ``count`` rotary frequencies by (Llama 3.1 model card's code)."""
    wavelengths = 2 * math.pi * theta ** (np.arange(count) / count)
    turns = scaling.original_max_position_embeddings / wavelengths
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = smooth.clip(0, 1)
    return np.asarray(1 / ((1 - smooth) / scaling.factor + smooth))


def _token_ids(value: object) -> frozenset[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token_id, int) for token_id in ids):
        raise CorruptModelError(
            f"config.json: eos_token_id must be a token id or a list of them, not {value!r}"
        )
    return frozenset(ids)
