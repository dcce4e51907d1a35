"""What a model's configuration says, as numbers: from a Hugging Face config or GGUF metadata.  No torch.

An option that would change what the model computes is understood or refused, never skipped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headstart.errors import CorruptModelError, UnsupportedModelError
from headstart.model.gguf_file import GGUFFile
from headstart.model.source import ModelFiles

# What model/llama.py computes.  A new family is one more name here, and its options below.
SUPPORTED_ARCHITECTURES = ("llama",)


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
        values = _Values(config, "config.json")
        architecture = _supported(config.get("model_type"))
        values.refuse("hidden_act", "silu")
        values.refuse("sliding_window", None)
        values.refuse("quantization_config", None)
        values.refuse("partial_rotary_factor", 1)
        for option in ("attention_bias", "mlp_bias"):
            values.refuse(option, False)
        hidden_size = values.integer("hidden_size")
        num_heads = values.integer("num_attention_heads")
        rope = _rope_parameters(config)
        rope.refuse("partial_rotary_factor", 1)
        return cls(
            architecture=architecture,
            vocab_size=values.integer("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=values.integer("intermediate_size"),
            num_layers=values.integer("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=values.integer("num_key_value_heads", num_heads),
            head_dim=values.integer("head_dim", hidden_size // num_heads),
            rms_norm_eps=values.number("rms_norm_eps", 1e-6),
            rope_theta=rope.number("rope_theta", 10_000.0),
            rope_scaling=_rope_scaling(rope),
            max_position_embeddings=values.integer("max_position_embeddings", 2048),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            eos_token_ids=_token_ids(config.get("eos_token_id")),
        )

    @classmethod
    def from_gguf(cls, header: GGUFFile) -> ModelSpec:
        """The spec in a GGUF file's metadata; raises as `from_config`."""
        architecture = _supported(header.metadata.get("general.architecture"))
        prefix = f"{architecture}."
        own = {
            key.removeprefix(prefix): value
            for key, value in header.metadata.items()
            if key.startswith(prefix)
        }
        values = _Values(own, str(header.path))
        values.refuse("expert_count", 0)  # Mixtral calls itself llama here
        values.refuse("attention.sliding_window", 0)
        values.refuse("rope.scaling.type", "none")
        hidden_size = values.integer("embedding_length")
        num_heads = values.integer("attention.head_count")
        head_dim = values.integer("attention.key_length", hidden_size // num_heads)
        values.refuse("attention.value_length", head_dim)
        values.refuse("rope.dimension_count", head_dim)  # less would be a partial rotation
        return cls(
            architecture=architecture,
            vocab_size=values.integer("vocab_size", len(header.metadata.get("tokenizer.ggml.tokens", ()))),
            hidden_size=hidden_size,
            intermediate_size=values.integer("feed_forward_length"),
            num_layers=values.integer("block_count"),
            num_heads=num_heads,
            num_kv_heads=values.integer("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            rms_norm_eps=values.number("attention.layer_norm_rms_epsilon"),
            rope_theta=values.number("rope.freq_base", 10_000.0),
            rope_scaling=_rope_scaling_from_factors(header, values.number("rope.freq_base", 10_000.0)),
            max_position_embeddings=values.integer("context_length"),
            tie_word_embeddings="output.weight" not in header.tensors,
            eos_token_ids=header.eos_token_ids,
        )


def read_spec(files: ModelFiles) -> ModelSpec:
    """The spec of a model on this machine; raises as `ModelSpec.from_config`."""
    if files.config is None:
        return ModelSpec.from_gguf(GGUFFile.read(files.weights[0]))
    config = _read_json(files.config)
    # Chat models name their end-of-turn token here only.
    generation = files.config.with_name("generation_config.json")
    if generation.is_file():
        more = _token_ids(_read_json(generation).get("eos_token_id"))
        config["eos_token_id"] = sorted(_token_ids(config.get("eos_token_id")) | more)
    return ModelSpec.from_config(config)


class _Values:
    """Checked access to a configuration; ``where`` names it in errors."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def refuse(self, name: str, expected: object) -> None:
        """Raise unless the option is absent or has the one value that is computed."""
        value = self._values.get(name)
        if value is not None and value != expected:
            raise UnsupportedModelError(
                f"{self.where}: {name} = {value!r} is not supported"
                + ("" if expected is None else f"; only {expected!r} is")
            )

    def text(self, *names: str) -> str | None:
        return next((str(self._values[name]) for name in names if self._values.get(name) is not None), None)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CorruptModelError(f"{self.where}: {name} must be a positive integer, not {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise CorruptModelError(f"{self.where}: {name} must be a positive number, not {value!r}")
        return float(value)

    def _get(self, name: str, default: float | None) -> Any:
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise CorruptModelError(f"{self.where}: {name} is missing")
        return value


def _supported(architecture: object) -> str:
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise UnsupportedModelError(
            f"the architecture {architecture!r} is not supported; "
            f"supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    return str(architecture)


def _rope_parameters(config: Mapping[str, Any]) -> _Values:
    """Rotary options in one place: transformers 5 has ``rope_parameters``, 4 had two keys."""
    where = "config.json: rotary embedding"
    options = config.get("rope_parameters")
    if options is None:
        options = {"rope_theta": config.get("rope_theta")} | (config.get("rope_scaling") or {})
    if any(isinstance(value, Mapping) for value in options.values()):
        raise UnsupportedModelError(f"{where}: parameters that differ between layers are not supported")
    return _Values(options, where)


def _rope_scaling(rope: _Values) -> Llama3RopeScaling | None:
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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptModelError(f"{path} is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise CorruptModelError(f"{path} is not a JSON object")
    return value
