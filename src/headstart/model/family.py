"""The architectures that model/llama.py computes: llama, and how each of the others differs from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Family:
    """How one architecture differs from llama.

    ``defaults`` are what transformers assumes of keys that a ``config.json`` leaves out, and
    ``rope_theta`` of the rotary base.  ``qkv_bias``: q, k and v have biases.  ``qk_norm``: each head of q
    and k is normed before its rotation.  ``no_rope_interval``: every n-th layer does not rotate, unless
    the config lists others.

    ``in_gguf``: llama.cpp knows it by this name (it stores mistral as llama).  ``interleaved_in_gguf``:
    and keeps the two rows of a rotated pair of q and k next to each other.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    rope_theta: float = 10_000.0
    qkv_bias: bool = False
    qk_norm: bool = False
    no_rope_interval: int | None = None
    in_gguf: bool = True
    interleaved_in_gguf: bool = False


_QWEN = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "use_sliding_window": False,
    "sliding_window": 4096,
}

FAMILIES: Mapping[str, Family] = {
    "llama": Family({"max_position_embeddings": 2048}, interleaved_in_gguf=True),
    "mistral": Family(
        {"num_key_value_heads": 8, "max_position_embeddings": 131_072, "sliding_window": 4096},
        in_gguf=False,
    ),
    "qwen2": Family(_QWEN, qkv_bias=True),
    "qwen3": Family(_QWEN | {"head_dim": 128}, qk_norm=True),
    "smollm3": Family(
        {
            "num_key_value_heads": 4,
            "max_position_embeddings": 32_768,
            "use_sliding_window": False,
            "tie_word_embeddings": True,
        },
        rope_theta=2_000_000.0,
        no_rope_interval=4,
        interleaved_in_gguf=True,
    ),
}
