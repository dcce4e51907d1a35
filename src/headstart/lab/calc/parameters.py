"""How many parameters a ``config.json`` makes: every matrix, norm and bias of the decoder added up.

The counts are those of transformers' classes, which tests compare, and so of published checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headstart.lab.calc.families import FamilyTraits
from headstart.lab.calc.layers import head_count, head_size, kv_head_count
from headstart.lab.calc.shape import Parameters
from headstart.model.checked import CheckedValues


@dataclass(frozen=True, slots=True)
class _Part:
    """Of one layer: matrices that every token goes through, and what quantisation leaves alone."""

    linear: int
    kept: int = 0
    experts: int = 0
    active: int = 0


def count_parameters(
    config: Mapping[str, Any], values: CheckedValues, family: FamilyTraits, num_layers: int
) -> Parameters:
    """Of the text decoder, with its embeddings.  Raises ``CorruptModelError`` for what is missing."""
    hidden = values.integer("hidden_size")
    attention = (
        _latent_attention(config, values, hidden)
        if config.get("kv_lora_rank")
        else _attention(config, values, family, hidden)
    )
    parts = [_feed_forward(config, values, family, hidden, index) for index in range(num_layers)]
    embedding = values.integer("vocab_size") * hidden
    tied = bool(config.get("tie_word_embeddings", False))
    kept = (embedding if tied else 2 * embedding) + hidden  # and the last norm
    kept += num_layers * (attention.kept + family.norms * hidden) + sum(part.kept for part in parts)
    return Parameters(
        kept=kept,
        linear=num_layers * attention.linear + sum(part.linear for part in parts),
        experts=sum(part.experts for part in parts),
        active_experts=sum(part.active for part in parts),
    )


def _attention(config: Mapping[str, Any], values: CheckedValues, family: FamilyTraits, hidden: int) -> _Part:
    heads, size = head_count(values), head_size(config, values)
    kv_heads = kv_head_count(config, values, heads)
    queries, keys = heads * size, kv_heads * size
    said = bool(config.get("attention_bias", False))
    kept = queries + 2 * keys if _or(family.qkv_bias, said) else 0
    kept += hidden if _or(family.o_bias, said) else 0
    kept += {None: 0, "head": 2 * size, "all": queries + keys}[family.qk_norm]
    kept += heads if family.sinks else 0
    return _Part(linear=2 * hidden * (queries + keys), kept=kept)


def _latent_attention(config: Mapping[str, Any], values: CheckedValues, hidden: int) -> _Part:
    """DeepSeek's: q, k and v go through narrow vectors, which have a norm each."""
    heads, rank = head_count(values), values.integer("kv_lora_rank")
    rotated, plain = values.integer("qk_rope_head_dim"), values.integer("qk_nope_head_dim")
    size_v = values.integer("v_head_dim")
    queries = heads * (plain + rotated)
    narrow = values.integer("q_lora_rank") if config.get("q_lora_rank") else 0
    linear = narrow * (hidden + queries) if narrow else hidden * queries
    linear += hidden * (rank + rotated) + rank * heads * (plain + size_v) + heads * size_v * hidden
    biases = (narrow + rank + rotated + hidden) if config.get("attention_bias") else 0
    return _Part(linear=linear, kept=narrow + rank + biases)


def _feed_forward(
    config: Mapping[str, Any], values: CheckedValues, family: FamilyTraits, hidden: int, index: int
) -> _Part:
    num_experts = values.first_integer("n_routed_experts", "num_local_experts", "num_experts", default=1)
    if num_experts == 1 or _is_dense(config, index):
        width = values.integer("intermediate_size")
        return _Part(linear=3 * hidden * width, kept=2 * width + hidden if config.get("mlp_bias") else 0)
    width = values.first_integer("moe_intermediate_size", "intermediate_size")
    one, biases = 3 * hidden * width, 2 * width + hidden if family.expert_biases else 0
    shared = _shared_width(config, values, width)
    router = num_experts * hidden + (num_experts if family.router_bias else 0)
    gate = hidden if config.get("shared_expert_intermediate_size") else 0
    active = values.first_integer("num_experts_per_tok", "moe_topk") * one
    return _Part(3 * hidden * shared, router + gate + num_experts * biases, num_experts * one, active)


def _is_dense(config: Mapping[str, Any], index: int) -> bool:
    if index < int(config.get("first_k_dense_replace") or 0):
        return True
    if index in (config.get("mlp_only_layers") or ()):
        return True
    return (index + 1) % int(config.get("decoder_sparse_step") or 1) != 0


def _shared_width(config: Mapping[str, Any], values: CheckedValues, width: int) -> int:
    if config.get("n_shared_experts"):
        return values.integer("n_shared_experts") * width
    if config.get("shared_expert_intermediate_size"):
        return values.integer("shared_expert_intermediate_size")
    return 0


def _or(known: bool | None, said: bool) -> bool:
    return said if known is None else known
