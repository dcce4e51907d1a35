"""Tiny GGUF files, written with llama.cpp's own writer so that reading is tested against another's hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType, GGUFValueType

GGUFWriter = Callable[..., Path]

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER, LAYERS, VOCAB = 4, 2, 16, 64, 96, 2, 512


def hugging_face_tensors(*, architecture: str = "llama", tied: bool = True) -> dict[str, np.ndarray]:
    """Random float32 weights of a tiny model, by Hugging Face name; the same each time."""
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for index in range(LAYERS):
        layer = f"model.layers.{index}."
        shapes |= {
            layer + "input_layernorm.weight": (HIDDEN,),
            layer + "self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            layer + "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            layer + "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            layer + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            layer + "post_attention_layernorm.weight": (HIDDEN,),
            layer + "mlp.gate_proj.weight": (INNER, HIDDEN),
            layer + "mlp.up_proj.weight": (INNER, HIDDEN),
            layer + "mlp.down_proj.weight": (HIDDEN, INNER),
        }
        if architecture == "qwen2":
            shapes |= {layer + "self_attn.q_proj.bias": (HEADS * HEAD_DIM,)}
            shapes |= {layer + f"self_attn.{name}_proj.bias": (KV_HEADS * HEAD_DIM,) for name in "kv"}
        if architecture == "qwen3":
            shapes |= {layer + f"self_attn.{name}_norm.weight": (HEAD_DIM,) for name in "qk"}
    shapes["model.norm.weight"] = (HIDDEN,)
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def gguf_tensors(tensors: Mapping[str, np.ndarray], *, interleaved: bool) -> dict[str, np.ndarray]:
    """The same weights as llama.cpp's converter stores them; ``interleaved``: its way for rotated pairs."""
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers.": "blk.",
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    stored = {}
    for name, tensor in tensors.items():
        heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else None
        if (
            interleaved and heads is not None
        ):  # row i of a head's first half is followed by row i of its second half
            rows = np.arange(heads * HEAD_DIM).reshape(heads, 2, HEAD_DIM // 2).transpose(0, 2, 1).ravel()
            tensor = tensor[rows]
        for old, new in names.items():
            name = name.replace(old, new)
        stored[name] = tensor
    return stored


def gguf_metadata(tokenizer_json: Path, architecture: str = "llama") -> dict[str, Any]:
    """Metadata of the tiny model, with the byte-level tokenizer of ``tokenizer.json``."""
    model = json.loads(tokenizer_json.read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    sizes: dict[str, Any] = {
        "context_length": 256,
        "embedding_length": HIDDEN,
        "block_count": LAYERS,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": HEAD_DIM,
        "rope.freq_base": 5000.0,
        "vocab_size": VOCAB,
    }
    return {f"{architecture}.{name}": value for name, value in sizes.items()} | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }


@pytest.fixture
def reference_tensors() -> Callable[..., dict[str, np.ndarray]]:
    """`hugging_face_tensors`, the weights that `write_gguf` stores."""
    return hugging_face_tensors


@pytest.fixture
def write_gguf(tmp_path: Path, tiny_llama_dir: Path) -> GGUFWriter:
    """Writes the tiny model as ``model.gguf``.

    ``metadata`` is laid over the defaults (``None`` removes), ``tensors`` over the usual ones (by GGUF
    name); matrices are quantised to ``kind``, vectors stay F32 as in llama.cpp's files.  ``blocks`` are
    more tensors, already quantised, each with its type.
    """

    def write(
        *,
        kind: GGMLQuantizationType = GGMLQuantizationType.F32,
        architecture: str = "llama",
        metadata: Mapping[str, Any] | None = None,
        tensors: Mapping[str, np.ndarray | None] | None = None,
        blocks: Mapping[str, tuple[np.ndarray, GGMLQuantizationType]] | None = None,
        tied: bool = True,
        directory: Path = tmp_path,
    ) -> Path:
        path = directory / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        tokenizer = tiny_llama_dir / "tokenizer.json"
        for key, value in (gguf_metadata(tokenizer, architecture) | dict(metadata or {})).items():
            if isinstance(value, list):
                writer.add_array(key, value)
            elif value is not None:
                writer.add_key_value(key, value, _value_type(value))
        usual = gguf_tensors(
            hugging_face_tensors(architecture=architecture, tied=tied),
            interleaved=architecture in ("llama", "smollm3"),  # llama.cpp's LLAMA_ROPE_TYPE_NORM
        )
        for name, tensor in (usual | dict(tensors or {})).items():
            if tensor is None:
                continue
            if tensor.ndim == 1:
                writer.add_tensor(name, tensor)
            else:
                writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        for name, (raw, raw_kind) in (blocks or {}).items():
            writer.add_tensor(name, raw, raw_dtype=raw_kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _value_type(value: object) -> GGUFValueType:
    # bool before int: it is one.
    kinds = {bool: GGUFValueType.BOOL, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32}
    return kinds.get(type(value), GGUFValueType.STRING)
