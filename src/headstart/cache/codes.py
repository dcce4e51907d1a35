"""Codes: what stands in a request's run for content that its tokens do not tell.

The radix index compares runs as memory.  For an image's placeholder tokens, and for tokens whose
embeddings were given, a run has a *code*: a negative number that was issued for that very content and for
nothing else, before or after.  A table of bounded size remembers the codes.  Content that has fallen out
of it gets another code, so forgetting costs a miss and is never a wrong hit.

No token may look like a code.  Models have no negative token ids, but callers may, so an index compares
either negative ids or codes: whichever it held first.  What came second is not cached.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from headstart.cache.keys import CacheRequest
from headstart.cache.media import spans_between
from headstart.cache.tokens import TOKEN_BYTES, has_negative
from headstart.errors import CacheError

_LEAST_CAPACITY = 4096
_LAST = -(2**31)


@dataclass(frozen=True, slots=True)
class _Content:
    """What one code means: the full digest, and the SHA-256 of the tokens that stand for it, all of them.

    The latter begins with the namespace.  No hit needs that, since trees are apart; but a table that is
    shared must not remember one tenant's image for longer because another has the same.
    """

    kind: str
    digest: str | bytes
    tokens: bytes


@dataclass(slots=True)
class _Coded:
    """A request's run with codes, and what stands for whoever issued them, and for when."""

    issued_by: object
    run: bytearray


class Codes:
    """Issues codes and remembers the last used ones, at least two for each of ``num_blocks`` blocks."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._capacity = max(_LEAST_CAPACITY, 2 * num_blocks)
        self._block_size = block_size
        self._codes: OrderedDict[_Content, int] = OrderedDict()  # the longest unused first
        self._last = 0
        self._issuer = object()
        self._has_negative_ids = False  # among the tokens that are cached

    def find(self, request: CacheRequest) -> bytearray:
        """The request's run as far as it can be compared: up to the first content without a code.

        Changes nothing.
        """
        if request.is_plain:
            return bytearray() if self._last < 0 and has_negative(request.tokens) else request.tokens
        known = self._known(request)
        return self._write(request, issue=False) if known is None else known

    def make(self, request: CacheRequest, start: int = 0, stop: int = 0) -> bytearray:
        """The same run, of which tokens ``start`` to ``stop`` are to be cached; the others are already.

        Content without a code gets one.
        """
        if request.is_plain:
            if start < stop and has_negative(request.tokens, start, stop):
                if self._last < 0:
                    return bytearray()
                self._has_negative_ids = True
            return request.tokens
        if self._has_negative_ids:
            return self.find(request)
        known = self._known(request)
        if known is None:
            known = self._write(request, issue=True)
            request.coded = _Coded(self._issuer, known)
        return known

    def clear(self) -> None:
        """Nothing is cached any more.  Requests that wait get new codes, as others with their content do."""
        self._codes.clear()
        self._issuer = object()
        self._has_negative_ids = False

    def _known(self, request: CacheRequest) -> bytearray | None:
        """The run made for the request earlier, with the tokens that it has gained since."""
        coded = request.coded
        if not isinstance(coded, _Coded) or coded.issued_by is not self._issuer:
            return None
        coded.run += request.tokens[len(coded.run) :]
        return coded.run

    def _write(self, request: CacheRequest, *, issue: bool) -> bytearray:
        run = bytearray(request.tokens)
        known = len(run)
        space = hashlib.sha256(request.namespace.identity).digest()
        for kind, digest, start, stop in self._contents(request):
            place = slice(start * TOKEN_BYTES, stop * TOKEN_BYTES)
            content = _Content(kind, digest, hashlib.sha256(space + run[place]).digest())
            code = self._code(content) if issue else self._codes.get(content)
            if code is None:
                known = min(known, place.start)
            else:
                run[place] = code.to_bytes(TOKEN_BYTES, "little", signed=True) * (stop - start)
        return run[:known]

    def _contents(self, request: CacheRequest) -> Iterator[tuple[str, str | bytes, int, int]]:
        """Media; then embeddings, which may lie over them, block by block."""
        for span in request.media:
            yield "mm", span.digest, span.offset, span.end
        if (embeds := request.prompt_embeds) is not None:
            for start in range(0, embeds.num_rows, self._block_size):
                stop = min(start + self._block_size, embeds.num_rows)
                yield "prompt_embeds", embeds.digest(start, stop), start, stop

    def _code(self, content: _Content) -> int:
        code = self._codes.get(content)
        if code is not None:
            self._codes.move_to_end(content)
            return code
        if self._last == _LAST:
            raise CacheError("2,147,483,648 different contents were cached: no code is left for another")
        self._last -= 1
        self._codes[content] = self._last
        if len(self._codes) > self._capacity:
            self._codes.popitem(last=False)
        return self._last

    def whole(self, request: CacheRequest, num_tokens: int) -> int:
        """At most ``num_tokens``, so many that no content is cut: a hit takes all of an image or none."""
        embeds, before = request.prompt_embeds, -1
        while before != num_tokens:
            before = num_tokens
            for span in spans_between(request.media, num_tokens - 1, num_tokens):
                if num_tokens < span.end:
                    num_tokens = span.offset
            if embeds is not None and num_tokens < embeds.num_rows:
                num_tokens -= num_tokens % self._block_size
        return num_tokens

    def state(self) -> tuple[int, list[int], bool]:
        """What decides which codes come next: plain values."""
        return self._last, list(self._codes.values()), self._has_negative_ids
