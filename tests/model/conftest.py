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


def hugging_face_tensors(*, tied: bool = True) -> dict[str, np.ndarray]:
    """Random float32 weights of a tiny llama, by Hugging Face name; the same each time."""
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
    shapes["model.norm.weight"] = (HIDDEN,)
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def gguf_tensors(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same weights as llama.cpp's converter stores them."""
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers.": "blk.",
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    stored = {}
    for name, tensor in tensors.items():
        heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else None
        if heads is not None:  # row i of a head's first half is followed by row i of its second half
            rows = np.arange(heads * HEAD_DIM).reshape(heads, 2, HEAD_DIM // 2).transpose(0, 2, 1).ravel()
            tensor = tensor[rows]
        for old, new in names.items():
            name = name.replace(old, new)
        stored[name] = tensor
    return stored


def gguf_metadata(tokenizer_json: Path) -> dict[str, Any]:
    """Metadata of the tiny llama, with the byte-level tokenizer of ``tokenizer.json``."""
    model = json.loads(tokenizer_json.read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "llama.context_length": 256,
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.rope.freq_base": 5000.0,
        "llama.vocab_size": VOCAB,
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
    """Writes the tiny llama as ``model.gguf``.

    ``metadata`` is laid over the defaults (``None`` removes), ``tensors`` over the usual ones (by GGUF
    name); matrices are quantised to ``kind``, vectors stay F32 as in llama.cpp's files.
    """

    def write(
        *,
        kind: GGMLQuantizationType = GGMLQuantizationType.F32,
        architecture: str = "llama",
        metadata: Mapping[str, Any] | None = None,
        tensors: Mapping[str, np.ndarray | None] | None = None,
        tied: bool = True,
        directory: Path = tmp_path,
    ) -> Path:
        path = directory / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in (gguf_metadata(tiny_llama_dir / "tokenizer.json") | dict(metadata or {})).items():
            if isinstance(value, list):
                writer.add_array(key, value)
            elif value is not None:
                writer.add_key_value(key, value, _value_type(value))
        for name, tensor in (gguf_tensors(hugging_face_tensors(tied=tied)) | dict(tensors or {})).items():
            if tensor is None:
                continue
            if tensor.ndim == 1:
                writer.add_tensor(name, tensor)
            else:
                writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
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
