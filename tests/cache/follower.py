"""A listener that knows each announced block's content: the namespace, and all symbols up to its end."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from headstart.cache import CacheRequest, Namespace

Symbol = Hashable
Prefix = tuple[Namespace, tuple[Symbol, ...]]


def symbols(request: CacheRequest, block_size: int, stop: int | None = None) -> tuple[Symbol, ...]:
    """What the first ``stop`` tokens mean, one symbol each: a prefix may be shared if its symbols are equal.

    A token; with an image or embeddings behind it, also what those are and the token's place in them.
    """
    found: list[Symbol] = list(request.token_ids(0, stop))
    for start, end, content in units(request, block_size):
        for position in range(start, min(end, len(found))):
            found[position] = (found[position], content, position - start)
    return tuple(found)


def units(request: CacheRequest, block_size: int) -> list[tuple[int, int, Symbol]]:
    """Where contents stand that are computed whole: first token, the one behind, and what it is."""
    media = [(span.offset, span.end, (span.digest, span.length)) for span in request.media]
    embeds, pieces = request.prompt_embeds, []
    if embeds is not None:
        for start in range(0, embeds.num_rows, block_size):
            end = min(start + block_size, embeds.num_rows)
            pieces.append((start, end, embeds.digest(start, end)))
    return [*media, *pieces]


class Follower:
    """Keeps `Listener`'s protocol, and insists on being told only what can be."""

    def __init__(self, block_size: int) -> None:
        self.contents: dict[int, Prefix] = {}
        self._block_size = block_size

    def _prefix(self, request: CacheRequest, num_blocks: int) -> Prefix:
        return request.namespace, symbols(request, self._block_size, num_blocks * self._block_size)

    def stored(self, request: CacheRequest, start: int, block_ids: Sequence[int], after: int | None) -> None:
        assert (after is None) == (start == 0)
        assert after is None or self.contents[after] == self._prefix(request, start)
        for index, block_id in enumerate(block_ids, start=start + 1):
            content = self._prefix(request, index)
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
