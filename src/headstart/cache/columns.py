"""Serial forms of all tokens of a run at once, as `cbor` and `pickles` write them.

Encoding tokens one by one costs several times what hashing them does.  Here a *column* is one byte of every
token's form: records of the longest form are laid out for all tokens together, and the bytes that a token's
own form does not have are dropped in one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import BytesIO

IS_NOT_0 = bytes([0] + [1] * 255)
_DROPPED_UNLESS = bytes([1] + [0] * 255)


def either(a: bytes, b: bytes) -> bytes:
    """Bitwise or; where one is all zeros, which the high bytes of tokens mostly are, for next to nothing."""
    if b.count(0) == len(b):
        return a
    if a.count(0) == len(a):
        return b
    return (int.from_bytes(a, "little") | int.from_bytes(b, "little")).to_bytes(len(a), "little")


def total(columns: Iterable[bytes], length: int) -> bytes:
    """The sum of bytes that stand side by side, which must not exceed 255: added as large numbers."""
    return sum([int.from_bytes(column, "little") for column in columns]).to_bytes(length, "little")


def joined(columns: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """The columns' bytes record by record, without those whose ``kept`` is 0 (None: all are kept).

    In a record of UTF-16 units a byte to be dropped has its unit's upper half set, so that it is no Latin-1.
    """
    width = 2 * len(columns)
    records = bytearray(width * len(columns[0][0]))
    for at, (column, kept) in enumerate(columns):
        records[2 * at :: width] = column
        if kept is not None:
            records[2 * at + 1 :: width] = kept.translate(_DROPPED_UNLESS)
    return records.decode("utf-16-le").encode("latin-1", "ignore")


def cut(encoded: bytes, lengths: bytes, block_size: int, longest: int) -> list[bytes]:
    """The encoded tokens of each block, given each token's length, at most ``longest``."""
    sizes: Iterable[int]
    if block_size * longest >= 256:
        sizes = (sum(lengths[at : at + block_size]) for at in range(0, len(lengths), block_size))
    else:
        while block_size % 2 == 0:  # neighbours are added: half as many are left
            pairs = int.from_bytes(lengths[::2], "little") + int.from_bytes(lengths[1::2], "little")
            lengths = pairs.to_bytes(len(lengths) // 2, "little")
            block_size //= 2
        if block_size > 1:
            columns = [lengths[at::block_size] for at in range(block_size)]
            lengths = total(columns, len(lengths) // block_size)
        sizes = lengths
    return list(map(BytesIO(encoded).read, sizes))
