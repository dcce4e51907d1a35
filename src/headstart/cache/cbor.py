"""The little of CBOR (RFC 8949, deterministic: §4.2.1) that block digests need, and all of it fast."""

from __future__ import annotations

from collections.abc import Iterable

from headstart.cache.columns import IS_NOT_0, cut, either, joined, total
from headstart.cache.tokens import TOKEN_BYTES, has_negative, ints_of

NULL = b"\xf6"

_IS_24_OR_MORE = bytes([0] * 24 + [1] * 232)
_HEAD_OF_FORM = bytes([0, 0x18, 0x19, 0x1A]).ljust(256, b"\0")
_LENGTH_OF_FORM = bytes([1, 2, 3, 5]).ljust(256, b"\0")
_LONGEST = 5
"""Bytes of the longest form of a token: a head and 32 bits."""


def head(major: int, value: int) -> bytes:
    """Three bits of major type, then the value in its shortest form.  ``ValueError`` beyond 64 bits."""
    if value < 24:
        return bytes((major << 5 | value,))
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << 8 * size:
            return bytes((major << 5 | code,)) + value.to_bytes(size, "big")
    raise ValueError(f"{value} needs more than 64 bits")


def integer(value: int) -> bytes:
    """One integer."""
    return head(0, value) if value >= 0 else head(1, -1 - value)


def text(value: str) -> bytes:
    """A text, as UTF-8."""
    data = value.encode()
    return head(3, len(data)) + data


def binary(value: bytes) -> bytes:
    """A string of bytes."""
    return head(2, len(value)) + value


def keys(parts: Iterable[Iterable[str | int | bytes]] | None) -> bytes:
    """Null, or an array of arrays of texts, integers and bytes."""
    if parts is None:
        return NULL
    arrays = []
    for part in parts:
        items = [_item(value) for value in part]
        arrays.append(head(4, len(items)) + b"".join(items))
    return head(4, len(arrays)) + b"".join(arrays)


def _item(value: str | int | bytes) -> bytes:
    if isinstance(value, str):
        return text(value)
    return integer(value) if isinstance(value, int) else binary(value)


def blocks_of(run: bytes, block_size: int) -> list[bytes]:
    """The tokens of each block of ``run``, which has whole blocks only, encoded one after the other."""
    if has_negative(run):  # something is negative: nobody's everyday
        items = list(map(integer, ints_of(run)))
        return [b"".join(items[at : at + block_size]) for at in range(0, len(items), block_size)]
    encoded, lengths = _integers(run)
    return cut(encoded, lengths, block_size, _LONGEST)


def _integers(run: bytes) -> tuple[bytes, bytes]:
    """Tokens of ``run``, none negative, encoded one after the other; and each one's length.

    Forms: 0 is the byte alone, 1 a head and 8 bits, 2 a head and 16 bits, 3 a head and 32 bits.
    """
    byte0, byte1, byte2, byte3 = (run[at::TOKEN_BYTES] for at in range(TOKEN_BYTES))
    is_3 = either(byte2, byte3).translate(IS_NOT_0)
    from_2 = either(byte1.translate(IS_NOT_0), is_3)
    from_1 = either(byte0.translate(_IS_24_OR_MORE), from_2)
    forms = total((is_3, from_2, from_1), len(byte0))
    columns = [(forms.translate(_HEAD_OF_FORM), from_1), (byte1, from_2), (byte0, None)]
    if 1 in is_3:
        columns[1:1] = [(byte3, is_3), (byte2, is_3)]
    return joined(columns), forms.translate(_LENGTH_OF_FORM)
