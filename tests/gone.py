"""What is still in memory: objects by type, and what holds certain tokens."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from headstart.cache import CacheRequest

_PLAIN = frozenset({str, bytes, bytearray, list, tuple})


def alive(*types: type) -> Counter[str]:
    """How many objects of these very types there are, by type; types that have none are left out."""
    gc.collect()
    return Counter(type(one).__name__ for one in gc.get_objects() if type(one) in types)


def holders_of(tokens: tuple[int, ...]) -> list[str]:
    """What in this process has these tokens in a row, as bytes or ints, and in what.

    ``tokens`` itself does not count.  They must be such as nothing else would have.
    """
    run = bytes(CacheRequest("", tokens).tokens)

    def has(one: Any) -> bool:
        if type(one) in (bytes, bytearray):
            return run in one
        if type(one) in (list, tuple) and one and type(one[0]) is int and tokens[0] in one:
            return any(tuple(one[place : place + len(tokens)]) == tokens for place in _places(one, tokens[0]))
        return False

    return _holders(has, but=(tokens, run))


def holders_of_text(text: str) -> list[str]:
    """As `holders_of`, for a text: str or bytes that contain it, but for ``text`` itself."""
    encoded = text.encode()

    def has(one: Any) -> bool:
        if type(one) is str:
            return text in one
        return type(one) in (bytes, bytearray) and encoded in one

    return _holders(has, but=(text, encoded))


def _holders(has: Callable[[Any], bool], but: Iterable[object]) -> list[str]:
    gc.unfreeze()  # what is there since before the first test may hold something, too
    gc.collect()
    known = {id(one) for one in but}
    found = []
    objects = gc.get_objects()
    for start in range(0, len(objects), 10_000):
        holders = objects[start : start + 10_000]
        ones = [*holders, *gc.get_referents(*holders)]
        # Of millions of references few lead to what can hold tokens, and fewer to what was not seen before.
        # By type: isinstance asks the object for its class, and some objects do things then.
        for one in compress(ones, map(_PLAIN.__contains__, map(type, ones))):
            if id(one) not in known:
                known.add(id(one))
                if has(one):
                    found.append(f"{type(one).__name__} in {_holder_of(one, holders)}")
    return found


def _holder_of(one: object, holders: list[Any]) -> str:
    refers = (
        holder for holder in holders if holder is one or any(one is each for each in gc.get_referents(holder))
    )
    return type(next(refers)).__name__


def _places(ints: Sequence[int], wanted: int) -> Iterator[int]:
    return (place for place, one in enumerate(ints) if one == wanted)


def num_objects() -> int:
    """Blocks of memory that Python's own objects take, garbage apart."""
    gc.collect()
    return sys.getallocatedblocks()


def resident_bytes(pid: int | str = "self") -> int:
    """The process's resident memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024
