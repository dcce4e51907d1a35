"""What an index tells others: which blocks became findable, and which stopped being so.

Events, reasons for misses and estimates follow the cache from here, so that neither index knows of them.
A listener keeps what it needs by block id, as the pool does: a block holds one content at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headstart.cache.keys import CacheRequest


class Listener(Protocol):
    """Told of whole, committed blocks only: pending ones and partly filled tails are nobody's business."""

    def stored(self, request: CacheRequest, start: int, block_ids: Sequence[int], after: int | None) -> None:
        """Blocks ``start`` and following of ``request`` are findable now, in ``block_ids``.

        ``after`` is the block that holds the content before them; None at a prompt's beginning.
        """
        ...

    def moved(self, block_id: int, to: int) -> None:
        """The content of ``block_id`` lives on in another copy, ``to``."""
        ...

    def removed(self, block_id: int) -> None:
        """The content of ``block_id`` was given up for the block's slots."""
        ...

    def cleared(self) -> None:
        """Everything was forgotten."""
        ...


class Announcer:
    """An index's voice: tells all listeners, once and only of what they were told is there."""

    def __init__(self, num_blocks: int, listeners: Sequence[Listener] = ()) -> None:
        self._listeners = tuple(listeners)
        self._announced = bytearray(num_blocks)

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def stored(self, request: CacheRequest, start: int, block_ids: Sequence[int], after: int | None) -> None:
        """See `Listener`, as for all of these."""
        if not self._listeners:
            return
        for block_id in block_ids:
            self._announced[block_id] = 1
        for listener in self._listeners:
            listener.stored(request, start, block_ids, after)

    def is_announced(self, block_id: int) -> bool:
        """Whether listeners know that the block is findable."""
        return bool(self._announced[block_id])

    def moved(self, block_id: int, to: int) -> None:
        """Nothing, if the block was not announced yet."""
        if self._announced[block_id]:
            self._announced[block_id], self._announced[to] = 0, 1
            for listener in self._listeners:
                listener.moved(block_id, to)

    def removed(self, block_ids: Sequence[int]) -> None:
        """Nothing of those blocks that were not announced."""
        if not self._listeners:
            return
        for block_id in block_ids:
            if self._announced[block_id]:
                self._announced[block_id] = 0
                for listener in self._listeners:
                    listener.removed(block_id)

    def cleared(self) -> None:
        """All of it."""
        self._announced = bytearray(len(self._announced))
        for listener in self._listeners:
            listener.cleared()
