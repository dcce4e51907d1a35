"""Tensors of a GGUF file under Hugging Face's names, dequantised."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.constants import GGMLQuantizationType

from headstart.errors import UnsupportedModelError
from headstart.model.family import FAMILIES
from headstart.model.gguf_file import GGUFFile
from headstart.model.spec import ModelSpec

# What llama.cpp's usual files hold.  The gguf package reads rarer types too, which no test here has seen.
SUPPORTED_TYPES = tuple(
    GGMLQuantizationType[name]
    for name in (
        *("F32", "F16", "BF16"),
        *("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
        *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
        *("IQ4_NL", "IQ4_XS"),
    )
)


def read_gguf(path: Path, spec: ModelSpec, names: Collection[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the file in float32, one after another; those of ``names`` under that name.

    A tensor that is none of ``names`` comes under the file's own name, a missing one not at all: judging
    either is the caller's affair.  Raises `UnsupportedModelError` for a tensor type not in
    `SUPPORTED_TYPES`, `CorruptModelError` for a truncated file.
    """
    header = GGUFFile.read(path)
    renamed = _hugging_face_names(spec, names)
    data = np.memmap(path, np.uint8, mode="r").view(np.ndarray)  # a memmap is slow to slice
    for tensor in header.tensors.values():
        name = renamed.get(tensor.name, tensor.name)
        if tensor.name == "rope_freqs.weight":
            continue  # the spec's rope_scaling says the same
        if tensor.type not in SUPPORTED_TYPES:
            supported = ", ".join(kind.name for kind in SUPPORTED_TYPES)
            raise UnsupportedModelError(
                f"{path}: tensor {tensor.name!r} has type {tensor.type.name}; supported: {supported}"
            )
        raw = data[tensor.offset : tensor.offset + tensor.nbytes].reshape(*tensor.shape[:-1], -1)
        # F32 comes back as a view of the read-only file, which torch must not own; the rest is fresh.
        values = np.require(gguf.quants.dequantize(raw, tensor.type), requirements="W")
        yield name, _undo_interleaving(name, torch.from_numpy(values), spec)


def _hugging_face_names(spec: ModelSpec, names: Collection[str]) -> dict[str, str]:
    architecture = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}[spec.architecture]
    to_gguf = gguf.get_tensor_name_map(architecture, spec.num_layers)
    return {to_gguf.get_name(name, try_suffixes=(".weight", ".bias")): name for name in names}


def _undo_interleaving(name: str, tensor: torch.Tensor, spec: ModelSpec) -> torch.Tensor:
    """Rows of q and k as Hugging Face has them: of each head, first halves of all rotated pairs, then second.

    llama.cpp keeps the two rows of a rotated pair next to each other, in some families.
    """
    if not FAMILIES[spec.architecture].interleaved_in_gguf:
        return tensor
    heads = {"q_proj.weight": spec.num_heads, "k_proj.weight": spec.num_kv_heads}.get(
        name.rpartition("self_attn.")[2]
    )
    if heads is None:
        return tensor
    pairs = tensor.reshape(heads, -1, 2, tensor.shape[-1])
    return pairs.transpose(1, 2).reshape(tensor.shape)
