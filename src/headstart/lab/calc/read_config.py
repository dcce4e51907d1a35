"""The shape in a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.lab.calc.families import FAMILIES, OTHERS
from headstart.lab.calc.layers import read_groups
from headstart.lab.calc.parameters import count_parameters
from headstart.lab.calc.precision import DTYPE_BYTES, quantization_of
from headstart.lab.calc.shape import Shape
from headstart.model.checked import CheckedValues


def read_config(config: Mapping[str, Any], name: str, source: str) -> Shape:
    """The shape of the text model that the config describes, of transformers 4 or 5.

    Raises ``UnsupportedModelError`` for layers or weights whose size cannot be told, ``CorruptModelError``
    for a missing or senseless value.
    """
    notes = []
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {key: config[key] for key in ("quantization_config",) if key in config} | {
            **_outer_defaults(config),
            **text,
        }
        notes.append("Of this model the text decoder alone is counted: not what reads images or sound.")
    architecture = str(config.get("model_type"))
    family = FAMILIES.get(architecture, OTHERS)
    config = {**family.defaults, **config}
    values = CheckedValues(config, "config.json")
    num_layers = values.first_integer("num_hidden_layers", "n_layer", "n_layers")
    groups = read_groups(config, values, family, num_layers)
    without = num_layers - sum(group.num_layers for group in groups)
    if without:
        notes.append(
            f"{without} of {num_layers} layers have no KV cache of their own; what state they keep for each "
            "sequence is not counted."
        )
    if config.get("num_nextn_predict_layers"):
        notes.append("Layers that predict further tokens (MTP) are not counted.")
    parameters = None
    if family.counts_parameters and not without:
        parameters = count_parameters(config, values, family, num_layers)
    context = "max_position_embeddings"
    return Shape(
        name=name,
        source=source,
        architecture=architecture,
        num_layers=num_layers,
        groups=groups,
        parameters=parameters,
        dtype=_dtype(config),
        quantization=quantization_of(config),
        context_length=values.integer(context) if config.get(context) is not None else None,
        notes=tuple(notes),
    )


def _outer_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config of several parts says for all of them."""
    return {key: config[key] for key in ("torch_dtype", "dtype", "tie_word_embeddings") if key in config}


def _dtype(config: Mapping[str, Any]) -> str:
    said = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return said if said in DTYPE_BYTES else "bfloat16"
