"""How many bytes a number takes: data types, and quantised weights as checkpoints describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from headstart.errors import ConfigError, UnsupportedModelError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
KV_DTYPE_BYTES = DTYPE_BYTES | {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}


@dataclass(frozen=True, slots=True)
class Quantization:
    """How matrices are stored: ``bits`` for each weight, its share of scales and zero points included.

    ``experts_only``: the matrices of attention and shared layers are left alone.
    """

    name: str
    bits: Fraction
    experts_only: bool = False


def grouped(bits: int, group_size: int | None, *, zero_points: bool = True) -> Fraction:
    """Bits for each weight where a group of them shares a 16-bit scale and, packed, a zero point."""
    if group_size is None:
        return Fraction(bits)
    return bits + Fraction(16 + (bits if zero_points else 0), group_size)


MXFP4 = Fraction(17, 4)
"""Four bits, and an 8-bit exponent for every 32 (OCP Microscaling Formats, version 1.0)."""
NF4 = Fraction(9, 2)
"""bitsandbytes: four bits, and a 32-bit maximum for every 64."""
NF4_DOUBLE = 4 + Fraction(8, 64) + Fraction(32, 64 * 256)
"""With those maxima quantised to 8 bits, 256 of them under one 32-bit number."""

QUANTIZATIONS = {
    "fp8": Fraction(8),
    "int8": Fraction(8),
    "int4": grouped(4, 128),
    "mxfp4": MXFP4,
    "nf4": NF4,
}
"""What ``--quantization`` takes; int4 as AWQ and GPTQ usually have it, in groups of 128."""


def kv_bytes(kv_cache_dtype: str, dtype: str) -> int:
    """Bytes of one element in the KV cache; ``auto`` is the model's own dtype.  Raises ``ConfigError``."""
    name = dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    if name not in KV_DTYPE_BYTES:
        known = ", ".join(["auto", *KV_DTYPE_BYTES])
        raise ConfigError(f"--kv-cache-dtype must be one of {known}, not {name!r}")
    return KV_DTYPE_BYTES[name]


def quantization_named(name: str) -> Quantization | None:
    """What ``--quantization`` means; None for ``none``.  Raises ``ConfigError``."""
    if name == "none":
        return None
    if name not in QUANTIZATIONS:
        known = ", ".join(["auto", "none", *QUANTIZATIONS])
        raise ConfigError(f"--quantization must be one of {known}, not {name!r}")
    return Quantization(name, QUANTIZATIONS[name])


def quantization_of(config: Mapping[str, Any]) -> Quantization | None:
    """What a ``config.json`` says of its weights in ``quantization_config``; None if nothing.

    Raises ``UnsupportedModelError`` for a method whose size is not known here.
    """
    options = config.get("quantization_config")
    if not isinstance(options, Mapping):
        return None
    method = str(options.get("quant_method"))
    bits = _bits(method, options)
    if bits is None:
        raise UnsupportedModelError(
            f"quantization_config: the size of weights of method {method!r} is not known; say it with "
            "--quantization or --weights"
        )
    spared = " ".join(map(str, options.get("modules_to_not_convert") or options.get("ignore") or ()))
    return Quantization(method, bits, experts_only="self_attn" in spared)


def _bits(method: str, options: Mapping[str, Any]) -> Fraction | None:
    match method:
        case "fp8" | "fbgemm_fp8":
            block = options.get("weight_block_size")
            return 8 + Fraction(32, block[0] * block[1]) if block else Fraction(8)
        case "mxfp4":
            return MXFP4
        case "awq" | "gptq":
            group = options.get("group_size", 128)
            return grouped(int(options.get("bits", 4)), group if group and group > 0 else None)
        case "bitsandbytes":
            if not options.get("load_in_4bit"):
                return Fraction(8)
            return NF4_DOUBLE if options.get("bnb_4bit_use_double_quant") else NF4
        case "compressed-tensors":
            return _compressed(options)
    return None


def _compressed(options: Mapping[str, Any]) -> Fraction | None:
    weights = [group.get("weights") for group in (options.get("config_groups") or {}).values()]
    if len(weights) != 1 or not isinstance(weights[0], Mapping):
        return None
    bits, group_size = weights[0].get("num_bits"), weights[0].get("group_size")
    if not isinstance(bits, int):
        return None
    symmetric = bool(weights[0].get("symmetric", True))
    return grouped(bits, group_size if group_size and group_size > 0 else None, zero_points=not symmetric)
