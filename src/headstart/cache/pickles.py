"""The bytes of ``pickle.dumps((parent, tokens, None), protocol=5)``, for all blocks of a run at once.

The format is that of CPython's pickletools: a frame; the parent's bytes; a mark, the tokens and the tuple
of them; None; and the triple.  Tokens have 8 bits, 16 bits or 32 bits with a sign, after a head.
"""

from __future__ import annotations

from headstart.cache.columns import IS_NOT_0, cut, either, joined, total
from headstart.cache.tokens import TOKEN_BYTES

LEAST_BLOCK = 4
"""Tokens: shorter tuples are written without a mark."""
MOST_BLOCK = 4096
"""Tokens: of longer ones, a pickle could have two frames."""
_HEAD_OF_FORM = b"KMJ".ljust(256, b"\0")
_LENGTH_OF_FORM = bytes([2, 3, 5]).ljust(256, b"\0")
_LONGEST = 5
BEFORE_TOKENS, BEHIND = b"\x94(", b"t\x94N\x87\x94."


class Heads(dict[int, bytes]):
    """What comes before a parent of ``parent_size`` bytes, by the number of bytes that the tokens have."""

    def __init__(self, parent_size: int) -> None:
        super().__init__()
        self._parent = b"C" + bytes((parent_size,))
        self._num_others = len(self._parent) + parent_size + len(BEFORE_TOKENS) + len(BEHIND)

    def __missing__(self, num_bytes: int) -> bytes:
        frame = (self._num_others + num_bytes).to_bytes(8, "little")
        head = self[num_bytes] = b"\x80\x05\x95" + frame + self._parent
        return head


def blocks_of(run: bytes, block_size: int) -> list[bytes]:
    """The tokens of each block of ``run``, which has whole blocks only, one after the other."""
    byte0, byte1, byte2, byte3 = (run[at::TOKEN_BYTES] for at in range(TOKEN_BYTES))
    has_4 = either(byte2, byte3).translate(IS_NOT_0)  # also what is negative
    forms = has_2 = byte1.translate(IS_NOT_0)
    wide = 1 in has_4
    if wide:
        has_2 = either(has_2, has_4)
        forms = total((has_4, has_2), len(byte0))
    columns = [(forms.translate(_HEAD_OF_FORM), None), (byte0, None), (byte1, has_2)]
    if wide:
        columns += [(byte2, has_4), (byte3, has_4)]
    return cut(joined(columns), forms.translate(_LENGTH_OF_FORM), block_size, _LONGEST)
