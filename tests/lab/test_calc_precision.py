from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from headstart.errors import ConfigError, UnsupportedModelError
from headstart.lab.calc.precision import kv_bytes, quantization_named, quantization_of


@pytest.mark.parametrize(
    ("options", "bits"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + Fraction(32, 128 * 128)),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + Fraction(20, 128)),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 128}}},
            },
            4.125,
        ),
    ],
)
def test_bits_as_checkpoints_describe_them(options: dict[str, Any], bits: Fraction) -> None:
    found = quantization_of({"quantization_config": options})
    assert found is not None
    assert found.bits == bits


def test_what_is_spared() -> None:
    options = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    found = quantization_of({"quantization_config": options})
    assert found is not None
    assert found.experts_only
    assert quantization_of({}) is None


@pytest.mark.parametrize("options", [{"quant_method": "new"}, {"quant_method": "compressed-tensors"}])
def test_an_unknown_method(options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="is not known; say it with --quantization or --weights"):
        quantization_of({"quantization_config": options})


def test_names() -> None:
    assert quantization_named("none") is None
    with pytest.raises(ConfigError, match=r"--quantization must be one of auto, none, fp8, .*, not 'q4'"):
        quantization_named("q4")
    assert kv_bytes("auto", "bfloat16") == 2
    assert kv_bytes("fp8_e5m2", "bfloat16") == 1
    with pytest.raises(ConfigError, match=r"--kv-cache-dtype must be one of auto, float32, .*, not 'fp4'"):
        kv_bytes("fp4", "bfloat16")
