"""What a ``config.json`` does not say because its architecture says it: one line for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class FamilyTraits:
    """How the weights and windows of one architecture differ from llama's.

    ``defaults`` are what transformers assumes of keys that a config leaves out.  ``qkv_bias`` and ``o_bias``:
    None is what ``attention_bias`` says.  ``qk_norm``: a weight for each dimension of a head, or of all
    heads.  ``norms`` is how many norms a layer has.  ``full_every``: of the layers of a model with windows,
    each n-th has none; None: all have one.  ``sinks``: one parameter for each head.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    qkv_bias: bool | None = None
    o_bias: bool | None = None
    qk_norm: Literal["head", "all"] | None = None
    norms: int = 2
    full_every: int | None = None
    expert_biases: bool = False
    router_bias: bool = False
    sinks: bool = False
    counts_parameters: bool = True


_QWEN = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA = {"head_dim": 256, "tie_word_embeddings": True}

FAMILIES: Mapping[str, FamilyTraits] = {
    "llama": FamilyTraits(),
    "granite": FamilyTraits(),
    "mistral": FamilyTraits({"num_key_value_heads": 8, "sliding_window": 4096}, False, False),
    "mixtral": FamilyTraits({"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "qwen2": FamilyTraits(_QWEN, qkv_bias=True, o_bias=False),
    "qwen2_moe": FamilyTraits(_QWEN, qkv_bias=True, o_bias=False),
    "qwen3": FamilyTraits(_QWEN | {"head_dim": 128}, qk_norm="head"),
    "qwen3_moe": FamilyTraits(_QWEN | {"head_dim": 128}, qk_norm="head"),
    "gemma": FamilyTraits(_GEMMA),
    "gemma2": FamilyTraits(_GEMMA | {"sliding_window": 4096}, norms=4, full_every=2),
    "gemma3_text": FamilyTraits(
        _GEMMA
        | {
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "sliding_window": 4096,
            "max_position_embeddings": 131_072,
        },
        qk_norm="head",
        norms=4,
        full_every=6,
    ),
    "phi3": FamilyTraits(qkv_bias=False, o_bias=False),
    "smollm3": FamilyTraits(
        {"num_key_value_heads": 4, "use_sliding_window": False, "tie_word_embeddings": True}
    ),
    "olmo2": FamilyTraits(qk_norm="all"),
    "deepseek_v2": FamilyTraits({"first_k_dense_replace": 0}),
    "deepseek_v3": FamilyTraits({"first_k_dense_replace": 3}, router_bias=True),
    "gpt_oss": FamilyTraits(
        {"head_dim": 64, "attention_bias": True, "sliding_window": 128},
        full_every=2,
        expert_biases=True,
        router_bias=True,
        sinks=True,
    ),
}

OTHERS = FamilyTraits(counts_parameters=False)
"""An architecture that is not listed: its KV cache can be counted, its weights cannot."""

IN_GGUF = {
    "gemma3": "gemma3_text",
    "gpt-oss": "gpt_oss",
    "deepseek2": "deepseek_v2",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
}
"""llama.cpp's names where they differ."""
