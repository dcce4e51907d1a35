"""A model's named tensors, from safetensors or GGUF, checked to be all there and of the right shape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from headstart.errors import CorruptModelError, UnsupportedModelError
from headstart.model.gguf_weights import read_gguf
from headstart.model.source import ModelFiles
from headstart.model.spec import ModelSpec

_FLOAT_TYPES = ("F64", "F32", "F16", "BF16")


def load_weights(files: ModelFiles, spec: ModelSpec, *, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The model's tensors on the CPU, by Hugging Face name, in ``dtype``.

    Quantised tensors are dequantised and llama.cpp's order of q and k rows is undone.  Tied models have
    no ``lm_head.weight``.  One tensor at a time is held twice.

    Raises `CorruptModelError` for a truncated file, a missing tensor or one of another shape than the
    spec says; `UnsupportedModelError` for a tensor type, or a tensor, that headstart does not compute with.
    """
    shapes = expected_shapes(spec)
    read = (
        read_gguf(files.weights[0], spec, shapes)
        if files.format == "gguf"
        else _read_safetensors(files.weights)
    )
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in read:
        if name not in shapes:
            if _is_redundant(name, spec):
                continue
            raise UnsupportedModelError(
                f"the model has a tensor {name!r}, which the architecture {spec.architecture!r} does not use"
            )
        if tuple(tensor.shape) != shapes[name]:
            raise CorruptModelError(
                f"tensor {name!r} has shape {tuple(tensor.shape)}, "
                f"the model's configuration says {shapes[name]}"
            )
        weights[name] = tensor.to(dtype)
    if missing := [name for name in shapes if name not in weights]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CorruptModelError(f"the model lacks tensor {missing[0]!r}{more}")
    return weights


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that a model of this spec consists of, with its shape."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    layer = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    if spec.qk_norm:
        layer |= {"self_attn.q_norm": (spec.head_dim,), "self_attn.k_norm": (spec.head_dim,)}
    biased = [f"self_attn.{name}_proj" for name in "qkv"] if spec.qkv_bias else []
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocab_size, hidden)}
    for index in range(spec.num_layers):
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
        shapes |= {f"model.layers.{index}.{name}.bias": layer[name][:1] for name in biased}
    shapes["model.norm.weight"] = (hidden,)
    if not spec.tie_word_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, hidden)
    return shapes


def _is_redundant(name: str, spec: ModelSpec) -> bool:
    """Whether a tensor says again what the spec or another tensor says already."""
    return name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and spec.tie_word_embeddings)


def _read_safetensors(paths: tuple[Path, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 -- not a mapping: it has no __iter__
                    kind = file.get_slice(name).get_dtype()
                    if kind not in _FLOAT_TYPES:
                        raise UnsupportedModelError(
                            f"{path}: tensor {name!r} has type {kind}; supported: {', '.join(_FLOAT_TYPES)}"
                        )
                    yield name, file.get_tensor(name)
        except SafetensorError as error:
            raise CorruptModelError(f"{path} is truncated or not a safetensors file ({error})") from error
