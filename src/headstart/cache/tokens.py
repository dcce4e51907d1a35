"""Tokens as *runs*: the bytes of little-endian int32, which compare and slice without a loop over tokens."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headstart.errors import RequestError

if TYPE_CHECKING:
    from typing_extensions import Buffer

TOKEN_BYTES = 4
"""Bytes of one token in a run."""

_PIECE = 1024  # tokens packed at once: few enough that they stay in the processor's cache meanwhile
_pack_piece = struct.Struct(f"<{_PIECE}i").pack


def ints_of(run: bytes) -> list[int]:
    """The tokens of a run."""
    tokens = array("i", run)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tolist()


def has_negative(run: bytes | bytearray, start: int = 0, stop: int | None = None) -> bool:
    """Whether one of the tokens ``start`` to ``stop`` is negative: its last byte has the upper bit set."""
    end = None if stop is None else stop * TOKEN_BYTES
    return not run[start * TOKEN_BYTES + TOKEN_BYTES - 1 : end : TOKEN_BYTES].isascii()


def part_of(run: bytearray, start: int, stop: int) -> bytes:
    """Tokens ``start`` to ``stop`` (exclusive), copied once."""
    if start == 0 and stop * TOKEN_BYTES >= len(run):
        return bytes(run)
    with memoryview(run) as view:
        return bytes(view[start * TOKEN_BYTES : stop * TOKEN_BYTES])


def run_of(token_ids: Iterable[int] | Buffer) -> bytearray:
    """Ints, a buffer of int32 or the bytes of a run, as a run of its own.  Raises ``RequestError``."""
    if isinstance(token_ids, bytes | bytearray):
        if len(token_ids) % TOKEN_BYTES:
            raise _not_tokens(f"{len(token_ids)} bytes are no whole number of them")
        return bytearray(token_ids)
    try:
        if isinstance(token_ids, list | tuple):
            return _pack(token_ids)
        view = _view_of(token_ids)
        if view is not None and view.format == "i" and view.ndim == 1 and sys.byteorder == "little":
            return bytearray(view)
        return _pack(list(token_ids) if view is None else view.tolist())  # type: ignore[arg-type]
    except (TypeError, ValueError, NotImplementedError, struct.error) as error:
        raise _not_tokens(str(error)) from error


def _view_of(token_ids: Iterable[int] | Buffer) -> memoryview | None:
    try:
        return memoryview(token_ids)  # type: ignore[arg-type]  # whether it is a buffer is the question
    except TypeError:
        return None


def _pack(tokens: Sequence[int]) -> bytearray:
    """The tokens as a run; twice as fast as an array of them."""
    if len(tokens) <= _PIECE:
        return bytearray(struct.pack(f"<{len(tokens)}i", *tokens))
    rest = len(tokens) - len(tokens) % _PIECE
    pieces = [_pack_piece(*tokens[start : start + _PIECE]) for start in range(0, rest, _PIECE)]
    run = bytearray().join(pieces)
    run += struct.pack(f"<{len(tokens) - rest}i", *tokens[rest:])
    return run


def _not_tokens(why: str) -> RequestError:
    return RequestError(f"token ids must be integers of 32 bits: {why}", param="prompt", code="invalid_value")
