"""What is still in memory: objects by type, and what holds certain tokens."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from headstart.cache import CacheRequest


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
        if type(one) in (list, tuple) and one and type(one[0]) is int:
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
    gc.collect()
    known = {id(one) for one in but}
    found = []
    for holder in gc.get_objects():
        for one in (holder, *gc.get_referents(holder)):
            # By type(one): isinstance asks the object for its class, and some objects do things then.
            if id(one) not in known and has(one):
                known.add(id(one))
                found.append(f"{type(one).__name__} in {type(holder).__name__}")
    return found


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
