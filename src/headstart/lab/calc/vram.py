"""What fits: weights, KV bytes for a token, and how many sequences one GPU (or machine) can hold.

A sequence of ``length`` tokens takes whole blocks of ``block_size`` tokens in every layer; in a layer with
a window only the blocks that reach into the last ``window`` tokens.  Sequences that share a prefix keep its
whole blocks once: all of them in layers without a window, in the others those of the window before the
prefix's end, which the next request needs to continue it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headstart.errors import ConfigError, UnsupportedModelError
from headstart.lab.calc.precision import DTYPE_BYTES, kv_bytes, quantization_named
from headstart.lab.calc.shape import LayerGroup, Shape


@dataclass(frozen=True, slots=True)
class Storage:
    """How weights and KV are kept.  ``auto`` is what the model's files say.

    ``weights_bytes`` overrules what would be counted.
    """

    dtype: str = "auto"
    quantization: str = "auto"
    kv_cache_dtype: str = "auto"
    weights_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """What one GPU has, and how many share the model.  ``overhead`` is an allowance in bytes."""

    memory: int
    utilization: float
    overhead: int


@dataclass(frozen=True, slots=True)
class Load:
    """Sequences of ``length`` tokens, of which the first ``shared`` are the same; blocks in tokens."""

    length: int
    shared: int = 0
    block_size: int = 16

    def __post_init__(self) -> None:
        if self.shared > self.length:
            raise ConfigError(
                f"--shared is a part of the sequence: {self.shared:,} of {self.length:,} tokens cannot be"
            )


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the model and one sequence take, on each GPU; all in bytes.

    ``kv_per_token`` counts all layers, ``kv_per_token_beyond_windows`` those that keep all tokens.
    ``shared_prefix`` is kept once; ``sequence_behind_prefix`` by each sequence beside it.
    """

    weights: int
    kv_element: int
    kv_per_token: int
    kv_per_token_beyond_windows: int
    sequence: int
    shared_prefix: int
    sequence_behind_prefix: int


@dataclass(frozen=True, slots=True)
class Fit:
    """What a machine has room for.  ``kv_cache`` is in bytes.

    ``num_blocks`` and ``num_tokens`` are those of a pool in which every layer keeps every token;
    ``num_sequences`` and ``num_sharing`` count sequences that let go what lies before their windows, and
    ``num_sequences_all_kept`` such that do not.
    """

    kv_cache: int
    num_blocks: int
    num_tokens: int
    num_sequences: int
    num_sequences_all_kept: int
    num_sharing: int


def footprint(shape: Shape, storage: Storage, load: Load, tensor_parallel: int = 1) -> Footprint:
    """What the model takes on each of ``tensor_parallel`` GPUs.

    Raises ``ConfigError`` for an unknown type and ``UnsupportedModelError`` where weights cannot be counted.
    """
    _check_heads(shape, tensor_parallel)
    element = kv_bytes(storage.kv_cache_dtype, shape.dtype if storage.dtype == "auto" else storage.dtype)
    size = load.block_size
    whole = min(load.shared, load.length - 1) // size  # blocks; the last token is always computed

    def take(blocks: Callable[[LayerGroup], int]) -> int:
        return sum(
            blocks(group) * size * group.elements_per_token(tensor_parallel) * element
            for group in shape.groups
        )

    return Footprint(
        weights=-(-weights_bytes(shape, storage) // tensor_parallel),
        kv_element=element,
        kv_per_token=element * shape.elements_per_token(tensor_parallel=tensor_parallel),
        kv_per_token_beyond_windows=element
        * shape.elements_per_token(beyond_windows=True, tensor_parallel=tensor_parallel),
        sequence=take(lambda group: _needed(group, load.length, size, 0)),
        shared_prefix=take(lambda group: _needed(group, whole * size, size, 0)),
        sequence_behind_prefix=take(lambda group: _needed(group, load.length, size, whole)),
    )


def fit(taken: Footprint, machine: Machine, load: Load) -> Fit:
    """How much of that the machine has room for; zero of all where the weights do not fit."""
    room = int(machine.memory * machine.utilization) - taken.weights - machine.overhead
    kv_cache = max(0, room)
    num_blocks = kv_cache // (taken.kv_per_token * load.block_size)
    blocks_of_one = -(-load.length // load.block_size)
    beside_prefix = max(0, kv_cache - taken.shared_prefix)
    return Fit(
        kv_cache=kv_cache,
        num_blocks=num_blocks,
        num_tokens=num_blocks * load.block_size,
        num_sequences=kv_cache // taken.sequence,
        num_sequences_all_kept=num_blocks // blocks_of_one,
        num_sharing=beside_prefix // taken.sequence_behind_prefix,
    )


def weights_bytes(shape: Shape, storage: Storage) -> int:
    """Bytes of all weights: as stored where files say so and nothing else is asked for, else counted."""
    if storage.weights_bytes is not None:
        return storage.weights_bytes
    as_stored = storage.dtype == "auto" and storage.quantization == "auto"
    if as_stored and shape.stored_bytes is not None:
        return shape.stored_bytes
    if shape.parameters is None:
        raise UnsupportedModelError(
            f"the weights of architecture {shape.architecture!r} cannot be counted from its configuration; "
            "say their size with --weights"
        )
    dtype = shape.dtype if storage.dtype == "auto" else storage.dtype
    if dtype not in DTYPE_BYTES:
        raise ConfigError(f"--dtype must be one of auto, {', '.join(DTYPE_BYTES)}, not {dtype!r}")
    quantized = (
        quantization_named(storage.quantization) if storage.quantization != "auto" else shape.quantization
    )
    count, plain = shape.parameters, DTYPE_BYTES[dtype]
    if quantized is None:
        return count.total * plain
    packed = count.experts + (0 if quantized.experts_only else count.linear)
    return (count.total - packed) * plain + int(packed * quantized.bits / 8)


def _needed(group: LayerGroup, length: int, block_size: int, first: int) -> int:
    """Blocks from number ``first`` on that one layer still needs of a sequence of ``length`` tokens."""
    oldest = 0 if group.window is None else max(0, length - group.window) // block_size
    return max(0, -(-length // block_size) - max(oldest, first))


def _check_heads(shape: Shape, tensor_parallel: int) -> None:
    for group in shape.groups:
        if group.num_heads % tensor_parallel and tensor_parallel % group.num_heads:
            raise ConfigError(
                f"{group.num_heads} KV heads cannot be divided among {tensor_parallel} GPUs; "
                "--tensor-parallel-size must divide them or be a multiple"
            )
