"""A GGUF file's header: its metadata and where each tensor lies.

The ``gguf`` package has a reader too, but it makes several numpy views for every string of the
vocabulary: 2.3 s for SmolLM2 against 0.1 s here, at each start and in each process.  The constants are
the package's.  Layout: the GGUF specification, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

from headstart.errors import CorruptModelError, UnsupportedModelError

MAGIC = b"GGUF"

_FORMATS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where one tensor lies: ``nbytes`` bytes, ``offset`` bytes from the start of the file.

    ``shape`` is row-major, as torch has it (GGUF lists dimensions the other way round).
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A header that was read and found whole: every tensor lies inside the file.

    ``metadata_digest`` is the SHA-256 of the metadata as stored, which includes the tokenizer.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]
    metadata_digest: str

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end an answer: end of text, end of turn, end of message."""
        ids = (self.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
        return frozenset(int(token_id) for token_id in ids if token_id is not None)

    @classmethod
    def read(cls, path: Path) -> GGUFFile:
        """The header of the file at ``path``; tensor data is not touched.

        Raises `CorruptModelError` for a file that is not GGUF, cut short or damaged, and
        `UnsupportedModelError` for a version, a split or a tensor type that headstart cannot read.
        """
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise CorruptModelError(f"{path} is not a GGUF file: it does not begin with the letters GGUF")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                try:
                    return _read(path, data)
                except (struct.error, ArithmeticError, LookupError, TypeError, ValueError) as error:
                    # What a cut or overwritten header looks like depends on where it was hit.
                    raise CorruptModelError(
                        f"{path} is truncated or damaged: its GGUF header cannot be read ({error})"
                    ) from error


class _Cursor:
    """Reads values one after another; a read past the end raises ``struct.error``."""

    def __init__(self, data: mmap.mmap, position: int) -> None:
        self._data = data
        self.position = position

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self.position)
        self.position += struct.calcsize("<" + code)
        return value

    def numbers(self, code: str, count: int) -> list[Any]:
        # Checked before struct sees it: a damaged count must not become a huge allocation.
        if count * struct.calcsize("<" + code) > len(self._data) - self.position:
            raise struct.error(f"an array of {count} elements ends after the file")
        values = struct.unpack_from(f"<{count}{code}", self._data, self.position)
        self.position += struct.calcsize(f"<{count}{code}")
        return list(values)

    def string(self) -> str:
        length = self.number("Q")
        end = self.position + length
        if end > len(self._data):
            raise struct.error(f"a string of {length} bytes ends after the file")
        text = self._data[self.position : end].decode("utf-8")
        self.position = end
        return text

    def value(self, kind: GGUFValueType) -> Any:
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind == GGUFValueType.ARRAY:
            inner, count = GGUFValueType(self.number("I")), self.number("Q")
            if inner in _FORMATS:
                return self.numbers(_FORMATS[inner], count)
            return [self.value(inner) for _ in range(count)]
        return self.number(_FORMATS[kind])


def _read(path: Path, data: mmap.mmap) -> GGUFFile:
    cursor = _Cursor(data, len(MAGIC))
    version = cursor.number("I")
    if version not in (2, 3):
        raise UnsupportedModelError(
            f"{path} is GGUF version {version} or big-endian; little-endian versions 2 and 3 are supported"
        )
    tensor_count, metadata_count = cursor.number("Q"), cursor.number("Q")
    start = cursor.position
    metadata: dict[str, Any] = {}
    for _ in range(metadata_count):
        key = cursor.string()
        metadata[key] = cursor.value(GGUFValueType(cursor.number("I")))
    digest = hashlib.sha256(data[start : cursor.position]).hexdigest()
    if (parts := metadata.get("split.count", 1)) > 1:
        raise UnsupportedModelError(
            f"{path} is one of {parts} parts of a split GGUF; merge the parts into one file first"
        )
    entries = [_tensor_entry(path, cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    data_start = math.ceil(cursor.position / alignment) * alignment
    tensors = {}
    for name, shape, kind, offset, nbytes in entries:
        tensors[name] = GGUFTensor(name, shape, kind, data_start + offset, nbytes)
        if data_start + offset + nbytes > len(data):
            raise CorruptModelError(
                f"{path} is truncated: tensor {name!r} ends at byte {data_start + offset + nbytes:,}, "
                f"the file at byte {len(data):,}"
            )
    return GGUFFile(path, metadata, tensors, digest)


def _tensor_entry(path: Path, cursor: _Cursor) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int, int]:
    name = cursor.string()
    shape = tuple(reversed(cursor.numbers("Q", cursor.number("I"))))
    type_id, offset = cursor.number("I"), cursor.number("Q")
    try:
        kind = GGMLQuantizationType(type_id)
    except ValueError:
        raise UnsupportedModelError(f"{path}: tensor {name!r} has the unknown type {type_id}") from None
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    if shape and shape[-1] % block_size:
        raise ValueError(f"rows of tensor {name!r} are not whole {kind.name} blocks")
    return name, shape, kind, offset, math.prod(shape) // block_size * block_bytes
