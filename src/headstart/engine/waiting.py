"""The queue of requests that hold no blocks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from sortedcontainers import SortedDict

from headstart.engine.request import Request


class WaitingQueue:
    """Requests in the order of (priority, arrival), smallest first.

    A preempted request returns to its old place, which is ahead of all that came after it.  Whoever
    is let in or gives up leaves in O(log n), from wherever it stands.
    """

    def __init__(self) -> None:
        self._by_order: SortedDict = SortedDict()

    def __len__(self) -> int:
        return len(self._by_order)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._by_order.values())

    def __contains__(self, request: Request) -> bool:
        return request.order in self._by_order

    def add(self, request: Request) -> None:
        """Put at its place."""
        self._by_order[request.order] = request

    def remove(self, request: Request) -> None:
        """Take out.  Raises ``KeyError`` if it is not in."""
        del self._by_order[request.order]

    def head(self, count: int) -> list[Request]:
        """The first ``count``, left where they are."""
        return list(islice(self._by_order.values(), count))
