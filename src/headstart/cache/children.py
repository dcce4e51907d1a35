"""The children of a tree's node, found by their first block and by their neighbours in sorted order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from sortedcontainers import SortedList

from headstart.cache.tokens import TOKEN_BYTES

Child = TypeVar("Child")


class Children(dict[bytes, Child]):
    """Children by *key*: the bytes of their first block, fewer for a stub.  `put` and `drop` alone write.

    Order is asked for only among keys that begin with the same token, and mostly there is one of them.
    So each token has its own: the key itself, or a sorted list once a second came.  Costs grow with
    their number, and not with that of all children.
    """

    __slots__ = ("_alike", "_lengths")

    def __init__(self) -> None:
        super().__init__()
        self._alike: dict[bytes, bytes | SortedList] = {}  # first token → keys, at least one
        self._lengths: dict[int, int] = {}  # bytes of a key → how many have so many, at least one

    def put(self, key: bytes, child: Child) -> None:
        """Add a child, in place of the one with the same key, if any."""
        if key not in self:
            self._lengths[len(key)] = self._lengths.get(len(key), 0) + 1
            token = key[:TOKEN_BYTES]
            alike = self._alike.setdefault(token, key)
            if not isinstance(alike, bytes):
                alike.add(key)
            elif alike is not key:
                self._alike[token] = SortedList((alike, key))
        self[key] = child

    def drop(self, key: bytes) -> None:
        """Take one out."""
        del self[key]
        self._lengths[len(key)] -= 1
        if not self._lengths[len(key)]:
            del self._lengths[len(key)]
        token = key[:TOKEN_BYTES]
        alike = self._alike[token]
        if not isinstance(alike, bytes):
            alike.remove(key)
        if isinstance(alike, bytes) or not alike:
            del self._alike[token]

    def sides(self, rest: bytes) -> Iterable[Iterable[bytes]]:
        """The keys that begin with the same token as ``rest``, away from it: upwards, then downwards."""
        alike = self._alike.get(rest[:TOKEN_BYTES])
        if alike is None:
            return ()
        if isinstance(alike, bytes):
            return ((alike,),)
        place, key_at = alike.bisect_left(rest), alike.__getitem__
        return map(key_at, range(place, len(alike))), map(key_at, range(place - 1, -1, -1))

    def has_longer(self, start: bytes) -> bool:
        """Whether a key begins with ``start`` and goes on."""
        alike = self._alike.get(start[:TOKEN_BYTES])
        if alike is None:
            return False
        if isinstance(alike, bytes):
            return len(alike) > len(start) and alike.startswith(start)
        place = alike.bisect_right(start)  # such a key sorts directly behind
        return place < len(alike) and bool(alike[place].startswith(start))

    def shorter(self, key: bytes) -> list[bytes]:
        """The keys that ``key``, one of them, begins with and goes on from; the shortest first."""
        if len(self._lengths) == 1 or isinstance(self._alike[key[:TOKEN_BYTES]], bytes):
            return []
        sizes = sorted(size for size in self._lengths if size < len(key))
        return [key[:size] for size in sizes if key[:size] in self]
