"""The shape in a GGUF file: its metadata, and its tensors as they are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from headstart.lab.calc.families import FAMILIES, IN_GGUF, OTHERS
from headstart.lab.calc.shape import LayerGroup, Parameters, Shape
from headstart.model.checked import CheckedValues
from headstart.model.gguf_file import GGUFFile, GGUFTensor


def read_gguf(header: GGUFFile, name: str) -> Shape:
    """The shape of the file's model; parameters and bytes are those of its tensors.

    Raises ``CorruptModelError`` for a missing or senseless value.
    """
    architecture = str(header.metadata.get("general.architecture"))
    prefix = f"{architecture}."
    own = {k.removeprefix(prefix): v for k, v in header.metadata.items() if k.startswith(prefix)}
    values = CheckedValues(own, str(header.path))
    num_layers = values.integer("block_count")
    context = own.get("context_length")
    return Shape(
        name=name,
        source=f"{header.path.name}'s header",
        architecture=architecture,
        num_layers=num_layers,
        groups=_groups(own, values, IN_GGUF.get(architecture, architecture), num_layers),
        parameters=_parameters(header.tensors, own),
        dtype="float16",  # llama.cpp's own KV cache, whatever the weights are
        context_length=context if isinstance(context, int) else None,
        stored_bytes=sum(tensor.nbytes for tensor in header.tensors.values()),
    )


def _groups(
    own: Mapping[str, Any], values: CheckedValues, architecture: str, num_layers: int
) -> tuple[LayerGroup, ...]:
    windows = _windows(own, values, architecture, num_layers)
    if own.get("attention.key_length_mla"):  # older files lack it, and llama.cpp keeps K and V of their heads
        size = values.integer("attention.kv_lora_rank") + values.integer("rope.dimension_count")
        return (LayerGroup(num_layers, 1, size, is_latent=True),)
    counts = own.get("attention.head_count_kv", own.get("attention.head_count"))
    per_layer = counts if isinstance(counts, list) else [counts] * num_layers
    size_k, size_v = _head_sizes(own, values)
    layers = Counter(
        (heads, window)
        for heads, window in zip(per_layer, windows, strict=True)
        if heads  # 0: no KV cache
    )
    return tuple(LayerGroup(n, heads, size_k + size_v, window) for (heads, window), n in layers.items())


def _head_sizes(own: Mapping[str, Any], values: CheckedValues) -> tuple[int, int]:
    """Of K and of V."""
    if "attention.key_length" in own:
        size_k = values.integer("attention.key_length")
    else:
        size_k = values.integer("embedding_length") // values.integer("attention.head_count")
    return size_k, values.integer("attention.value_length", size_k)


def _windows(
    own: Mapping[str, Any], values: CheckedValues, architecture: str, num_layers: int
) -> Sequence[int | None]:
    if not own.get("attention.sliding_window"):
        return [None] * num_layers
    window = values.integer("attention.sliding_window")
    pattern = own.get("attention.sliding_window_pattern") or FAMILIES.get(architecture, OTHERS).full_every
    if isinstance(pattern, list):
        return [window if slides else None for slides in pattern]
    if pattern is None:
        return [window] * num_layers
    return [None if (i + 1) % int(pattern) == 0 else window for i in range(num_layers)]


def _parameters(tensors: Mapping[str, GGUFTensor], own: Mapping[str, Any]) -> Parameters:
    sizes = {name: math.prod(tensor.shape) for name, tensor in tensors.items()}
    matrices = {name for name, tensor in tensors.items() if len(tensor.shape) > 1 and _is_linear(name)}
    experts = sum(sizes[name] for name in matrices if "_exps." in name)
    linear = sum(sizes[name] for name in matrices) - experts
    used, count = own.get("expert_used_count", 1), own.get("expert_count", 1) or 1
    return Parameters(sum(sizes.values()) - linear - experts, linear, experts, experts * used // count)


def _is_linear(name: str) -> bool:
    """Whether it is a layer's matrix, and neither a bias nor a router."""
    return name.startswith("blk.") and name.endswith(".weight") and "gate_inp" not in name
