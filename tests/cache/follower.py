"""A listener that knows each announced block's content: the namespace, and all tokens up to its end."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.cache import CacheRequest, Namespace

Prefix = tuple[Namespace, tuple[int, ...]]


class Follower:
    """Keeps `Listener`'s protocol, and insists on being told only what can be."""

    def __init__(self, block_size: int) -> None:
        self.contents: dict[int, Prefix] = {}
        self._block_size = block_size

    def stored(self, request: CacheRequest, start: int, block_ids: Sequence[int], after: int | None) -> None:
        before = tuple(request.token_ids(0, start * self._block_size))
        assert (after is None) == (start == 0)
        assert after is None or self.contents[after] == (request.namespace, before)
        for index, block_id in enumerate(block_ids, start=start + 1):
            content = request.namespace, tuple(request.token_ids(0, index * self._block_size))
            assert block_id not in self.contents
            assert content not in self.contents.values(), "stored is told with the first copy"
            self.contents[block_id] = content

    def moved(self, block_id: int, to: int) -> None:
        assert to not in self.contents
        self.contents[to] = self.contents.pop(block_id)

    def removed(self, block_id: int) -> None:
        del self.contents[block_id]

    def cleared(self) -> None:
        self.contents.clear()
