"""The children of a tree's node, found by their first block and by their neighbours in sorted order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from sortedcontainers import SortedList

from headstart.cache.tokens import TOKEN_BYTES

Child = TypeVar("Child")


class Children(dict[bytes, Child]):
    """Children by *key*: the bytes of their first block, fewer for a stub; written by `put` and `drop` only.

    Order is asked for only among keys that begin with the same token, and mostly there is one of them.
    So each token has its own: the key itself, or a sorted list once a second came.  Costs do not grow
    with the number of children but for those.
    """

    __slots__ = ("_alike",)

    def __init__(self) -> None:
        super().__init__()
        self._alike: dict[bytes, bytes | SortedList] = {}  # first token → keys, at least one

    def put(self, key: bytes, child: Child) -> None:
        """Add a child, in place of the one with the same key, if any."""
        if key not in self:
            token = key[:TOKEN_BYTES]
            alike = self._alike.setdefault(token, key)
            if isinstance(alike, SortedList):
                alike.add(key)
            elif alike is not key:
                self._alike[token] = SortedList((alike, key))
        self[key] = child

    def drop(self, key: bytes) -> None:
        """Take one out."""
        del self[key]
        token = key[:TOKEN_BYTES]
        alike = self._alike[token]
        if isinstance(alike, SortedList):
            alike.remove(key)
        if not isinstance(alike, SortedList) or not alike:
            del self._alike[token]

    def has_alike(self, key: bytes) -> bool:
        """Whether another child begins with the same token as the one with this key."""
        alike = self._alike[key[:TOKEN_BYTES]]
        return isinstance(alike, SortedList) and len(alike) > 1

    def sides(self, rest: bytes) -> Iterator[Iterator[bytes]]:
        """The keys that begin with the same token as ``rest``, away from it: upwards, then downwards."""
        alike = self._alike.get(rest[:TOKEN_BYTES])
        if isinstance(alike, SortedList):
            place = alike.bisect_left(rest)
            yield alike.islice(place)
            yield alike.islice(0, place, reverse=True)
        elif alike is not None:
            yield iter((alike,))

    def longer(self, start: bytes) -> bool:
        """Whether a key begins with ``start`` and goes on."""
        alike = self._alike.get(start[:TOKEN_BYTES])
        if isinstance(alike, SortedList):  # such a key sorts directly behind
            place = alike.bisect_right(start)
            return place < len(alike) and bool(alike[place].startswith(start))
        return alike is not None and len(alike) > len(start) and alike.startswith(start)
