"""Which layers keep what of each token: from a Hugging Face ``config.json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from headstart.errors import CorruptModelError, UnsupportedModelError
from headstart.lab.calc.families import FamilyTraits
from headstart.lab.calc.shape import LayerGroup
from headstart.model.checked import CheckedValues

Windows = Sequence[int | None]
"""For each layer with a KV cache how far back it looks; None is all the way."""

_WITHOUT_KV = {"linear_attention", "mamba", "mamba2", "conv", "recurrent", "moe", "mlp"}
_STATEFUL = (
    "ssm",
    "mamba",
    "state_size",
    "lru_width",
    "hybrid_override",
    "block_types",
    "linear_attn",
    "attn_type_list",
    "conv_L_cache",
)
"""Keys of models with other layers than attention."""


def read_groups(
    config: Mapping[str, Any], values: CheckedValues, family: FamilyTraits, num_layers: int
) -> tuple[LayerGroup, ...]:
    """The layers with a KV cache, those that keep the same together, in the order of their first.

    Raises ``UnsupportedModelError`` where the config has layers that it does not tell apart here, and
    ``CorruptModelError`` for a senseless value.
    """
    windows = list(_windows(config, values, family, num_layers))
    shared = config.get("num_kv_shared_layers") or 0  # Gemma 3n: the last layers read the K and V of others
    if shared:
        windows = windows[: num_layers - values.integer("num_kv_shared_layers")]
    if not windows:
        raise UnsupportedModelError(f"{values.where}: no layer has a KV cache, so nothing is to calculate")
    num_heads, elements = _kept_by_a_layer(config, values)
    is_latent = bool(config.get("kv_lora_rank"))
    return tuple(
        LayerGroup(count, num_heads, elements, window, is_latent)
        for window, count in Counter(windows).items()
    )


def _kept_by_a_layer(config: Mapping[str, Any], values: CheckedValues) -> tuple[int, int]:
    """Heads, and elements of each.

    MLA keeps the compressed vector and the rotated part of the key, once for all heads (DeepSeek-V2, section
    2.1); with sparse attention also the indexer's key.
    """
    if config.get("kv_lora_rank"):
        index_key = values.integer("index_head_dim") if config.get("index_head_dim") else 0
        return 1, values.integer("kv_lora_rank") + values.integer("qk_rope_head_dim") + index_key
    num_heads = head_count(values)
    head_dim = head_size(config, values)
    return kv_head_count(config, values, num_heads), 2 * head_dim


def head_count(values: CheckedValues) -> int:
    """Attention heads."""
    return values.first_integer("num_attention_heads", "n_head", "n_heads")


def kv_head_count(config: Mapping[str, Any], values: CheckedValues, num_heads: int) -> int:
    """Heads of K and of V: one with multi-query attention."""
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    count = values.first_integer("num_key_value_heads", "num_kv_heads", "n_head_kv", default=num_heads)
    if num_heads % count:
        raise CorruptModelError(
            f"{values.where}: {num_heads} attention heads cannot share {count} KV heads evenly"
        )
    return count


def head_size(config: Mapping[str, Any], values: CheckedValues) -> int:
    """Elements of one head's K."""
    if config.get("head_dim") is not None:
        return values.integer("head_dim")
    return values.first_integer("hidden_size", "n_embd", "d_model") // head_count(values)


def _windows(
    config: Mapping[str, Any], values: CheckedValues, family: FamilyTraits, num_layers: int
) -> Windows:
    kinds = _layer_kinds(config, values, family, num_layers)
    found: list[int | None] = []
    for kind in kinds:
        if kind == "full_attention":
            found.append(None)
        elif kind == "sliding_attention":
            found.append(values.integer("sliding_window"))
        elif kind == "chunked_attention":  # within a chunk, so never more than one of them
            found.append(values.integer("attention_chunk_size"))
        elif kind not in _WITHOUT_KV:
            raise UnsupportedModelError(
                f"{values.where}: layer_types has {kind!r}, of which it is not known what it keeps of a token"
            )
    return found


def _layer_kinds(
    config: Mapping[str, Any], values: CheckedValues, family: FamilyTraits, num_layers: int
) -> Sequence[str]:
    """The kind of each layer, in transformers' words."""
    kinds = config.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != num_layers:
            raise CorruptModelError(f"{values.where}: layer_types must list {num_layers} layers")
        return ["full_attention" if kind == "attention" else str(kind) for kind in kinds]
    if config.get("full_attention_interval"):  # Qwen3-Next
        interval = values.integer("full_attention_interval")
        return _every(num_layers, interval, "linear_attention")
    if config.get("attn_layer_period"):  # Jamba
        period, offset = values.integer("attn_layer_period"), config.get("attn_layer_offset") or 0
        return ["full_attention" if i % period == offset else "mamba" for i in range(num_layers)]
    if config.get("attention_chunk_size"):  # Llama 4
        return _every(num_layers, int(config.get("no_rope_layer_interval") or 4), "chunked_attention")
    for key in config:
        if any(word in key for word in _STATEFUL):
            raise UnsupportedModelError(
                f"{values.where}: {key} speaks of layers without a KV cache, and there is no layer_types to "
                "say which they are"
            )
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return ["full_attention"] * num_layers
    if config.get("use_sliding_window"):  # Qwen: layers from max_window_layers on
        first = int(config.get("max_window_layers") or 0)
        return ["full_attention" if i < first else "sliding_attention" for i in range(num_layers)]
    every = config.get("sliding_window_pattern") or family.full_every
    if every is None:
        return ["sliding_attention"] * num_layers
    return _every(num_layers, int(every), "sliding_attention")


def _every(num_layers: int, interval: int, otherwise: str) -> list[str]:
    """Each ``interval``-th layer has full attention."""
    return ["full_attention" if (i + 1) % interval == 0 else otherwise for i in range(num_layers)]
