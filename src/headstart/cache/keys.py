"""What identifies cached content: the tokens, and the namespace that they must never leave.

Both indexes, and later the tiers, the events and the router, take their key material from here and
from nowhere else, so that no two of them can disagree on what may be shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import repeat
from typing import TYPE_CHECKING, Any

from headstart.cache.media import MediaSpan, PromptEmbeds, check_spans, is_text, spans_between
from headstart.cache.tokens import TOKEN_BYTES, has_negative, ints_of, part_of, run_of
from headstart.errors import RequestError

if TYPE_CHECKING:
    from typing_extensions import Buffer

HIGHEST_PRIORITY = 100
"""Of retention priorities; 0 is the lowest, and that of requests that name none."""

ExtraKeys = tuple[tuple[str | int | bytes, ...], ...] | None
"""Typed parts that enter a block's digest beside its tokens; None when there are none."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter by content: new weights under an old name are another adapter."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class Namespace:
    """What must never be shared across: two requests share KV only if their namespaces are equal.

    The parts are typed fields, so an adapter named "X" never meets a salt "X".
    Raises ``RequestError`` for an empty salt: it is a mistake, not "no salt".
    """

    adapter: Adapter | None = None
    salt: str | None = None

    def __post_init__(self) -> None:
        salt: object = self.salt  # a caller from Python may hand over anything
        if salt is not None and not (isinstance(salt, str) and salt and is_text(salt)):
            raise RequestError(
                "cache_salt must be a non-empty string of valid Unicode or absent",  # and is never quoted
                param="cache_salt",
                code="invalid_value",
            )

    @property
    def identity(self) -> bytes:
        """What tells it from every other one, the salt included: to be hashed, and never to be shown.

        The representation leaves the salt out, so it is no identity.
        """
        return f"Namespace(adapter={self.adapter!r}, salt={self.salt!r})".encode()

    def __repr__(self) -> str:
        """Without the salt, which is a secret: what is represented may be logged, and identifies nothing."""
        return f"Namespace(adapter={self.adapter!r}, salt={None if self.salt is None else '…'})"


SHARED = Namespace()
"""The namespace of requests that name neither an adapter nor a salt."""


class CacheRequest:
    """One request's tokens, what its placeholder tokens stand for, and its namespace, as the cache sees them.

    ``token_ids`` is an iterable of ints, or a buffer that is copied in one go: an ``array`` or a numpy
    array of int32, or the ``bytes`` of little-endian int32.  Decoded tokens are appended.
    ``media`` are its spans in order; ``prompt_embeds`` stand for its first tokens.
    ``skip_reading`` is for requests that want the logits of their prompt: nothing that others computed is
    a hit for them, but what they compute can be found.  They are left out of the statistics.
    ``skip_writing`` is for requests that leave nothing behind: what they compute is never found, not by
    themselves either when they come back after a preemption.
    ``num_prompt_tokens`` says how many of the tokens are the prompt (None: all), ``retention_priority`` how
    long to keep what the request uses: 0 to 100, the higher the longer.  ``tenant`` is who pays where tenants
    have shares of the pool, and no key: whose content is whose is the namespace's business alone.
    Raises ``RequestError`` for what is not a list of int32, for numbers out of range, and for spans or
    embeddings that are not of this prompt; with either of them token ids must not be negative.
    """

    __slots__ = (
        *("__weakref__", "coded", "digests", "has_collided", "is_plain", "media", "namespace"),
        *("num_admissions", "num_committed", "num_prompt_tokens", "prompt_embeds", "request_id"),
        *("retention_priority", "skip_reading", "skip_writing", "tenant", "tokens"),
    )

    def __init__(
        self,
        request_id: str,
        token_ids: Iterable[int] | Buffer,
        *,
        namespace: Namespace = SHARED,
        media: Sequence[MediaSpan] = (),
        prompt_embeds: PromptEmbeds | None = None,
        skip_reading: bool = False,
        skip_writing: bool = False,
        num_prompt_tokens: int | None = None,
        retention_priority: int = 0,
        tenant: str | None = None,
    ) -> None:
        self.request_id = request_id
        self.tenant = tenant
        self.namespace = namespace
        self.media = tuple(media)
        self.prompt_embeds = prompt_embeds
        self.is_plain = not self.media and prompt_embeds is None
        """Whether the tokens tell all of the content: no media, no embeddings."""
        self.skip_reading = skip_reading
        self.skip_writing = skip_writing
        self.tokens = run_of(token_ids)
        """All tokens as one run: little-endian int32.  A bytearray, so that comparing it copies nothing."""
        num_tokens = self.num_tokens
        if num_prompt_tokens is not None:
            _in_range("num_prompt_tokens", num_prompt_tokens, num_tokens)
        _in_range("retention_priority", retention_priority, HIGHEST_PRIORITY)
        self.num_prompt_tokens = num_tokens if num_prompt_tokens is None else num_prompt_tokens
        self.retention_priority = retention_priority
        self.digests: list[bytes] = []
        """Digests of the leading full blocks, as far as the `hash` index has needed them; its own."""
        self.has_collided = False
        """Whether the `hash` index met other content under a digest of this request; its own."""
        self.coded: Any = None
        """Its run with codes for what the tokens do not tell, once the radix index has made it; its own."""
        self.num_admissions = 0
        """How often the manager admitted it; more than once after a preemption.  The manager's own."""
        self.num_committed = 0
        """How many leading tokens were ever computed for it, in steps that committed.  The manager's own."""
        if not self.is_plain:
            self._check_content()

    def _check_content(self) -> None:
        check_spans(self.media, self.num_tokens)
        if self.prompt_embeds is not None and self.prompt_embeds.num_rows > self.num_tokens:
            raise RequestError(
                f"prompt_embeds are {self.prompt_embeds.num_rows} rows for {self.num_tokens} tokens",
                param="prompt_embeds",
                code="invalid_value",
            )
        if has_negative(self.tokens):
            raise _negative()

    # -- tokens ----------------------------------------------------------------------------------

    @property
    def num_readable(self) -> int:
        """The most tokens that may be a hit: the last must be computed, for its logits.

        With ``skip_reading`` those only that were computed for this very request, before it was preempted,
        and none if it skips writing, too: then whatever is found is others'.
        """
        if not self.skip_reading:
            return self.num_tokens - 1
        return 0 if self.skip_writing else min(self.num_tokens - 1, self.num_committed)

    @property
    def num_tokens(self) -> int:
        """Prompt tokens and the decoded tokens appended since."""
        return len(self.tokens) // TOKEN_BYTES

    def append(self, token_id: int) -> None:
        """Add one decoded token."""
        if token_id < 0 and not self.is_plain:
            raise _negative()
        self.tokens += token_id.to_bytes(TOKEN_BYTES, "little", signed=True)

    def run(self, start: int, stop: int) -> bytes:
        """Tokens ``start`` to ``stop`` (exclusive) as the bytes that indexes compare."""
        return part_of(self.tokens, start, stop)

    def token_ids(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Tokens ``start`` to ``stop`` (exclusive; None is the end) as ints."""
        return ints_of(self.run(start, self.num_tokens if stop is None else stop))

    def text(self, start: int, stop: int) -> bytes:
        """The same, with hashes of 32 bits in the place of tokens that do not tell what they stand for.

        For reasons and estimates, which two equal hashes would make a little wrong; never for a hit.
        """
        if self.is_plain:
            return self.run(start, stop)
        run = bytearray(self.run(start, stop))

        def put(place: int, content: bytes) -> None:
            at = (place - start) * TOKEN_BYTES
            run[at : at + TOKEN_BYTES] = blake2b(content, digest_size=TOKEN_BYTES).digest()

        for span in spans_between(self.media, start, stop):
            for place in range(max(start, span.offset), min(stop, span.end)):
                put(place, repr((span.digest, span.length, place - span.offset)).encode())
        if self.prompt_embeds is not None:
            for place in range(start, min(stop, self.prompt_embeds.num_rows)):
                put(place, self.prompt_embeds.digest(place, place + 1))
        return bytes(run)

    # -- keys ------------------------------------------------------------------------------------

    def extra_keys(self, block_index: int, block_size: int) -> ExtraKeys:
        """What enters the digest of block ``block_index`` beside its tokens, typed, in vLLM's order.

        The adapter in every block; each media item that touches the block, with its offset from the block's
        start, which is negative where it began earlier; the salt in the first block alone, since the
        chain carries it on; with prompt embeddings the SHA-256 of the block's rows, in every block.
        The one source of such keys, for indexes, events, tiers and router.
        """
        keys: list[tuple[str | int | bytes, ...]] = []
        adapter, salt = self.namespace.adapter, self.namespace.salt
        start = block_index * block_size
        if adapter is not None:
            keys.append(("lora", adapter.name, adapter.digest))
        if self.media:
            touched = spans_between(self.media, start, start + block_size)
            keys += [("mm", span.digest, span.offset - start) for span in touched]
        if salt is not None and block_index == 0:
            keys.append(("cache_salt", salt))
        if self.prompt_embeds is not None:
            keys.append(("prompt_embeds", self.prompt_embeds.digest(start, start + block_size)))
        return tuple(keys) if keys else None

    def all_extra_keys(self, start: int, stop: int, block_size: int) -> list[ExtraKeys]:
        """The `extra_keys` of the blocks ``start`` to ``stop`` (exclusive)."""
        if not self.is_plain:
            return [self.extra_keys(index, block_size) for index in range(start, stop)]
        if self.namespace.adapter is None and self.namespace.salt is None:
            return [None] * (stop - start)
        first = [self.extra_keys(0, block_size)] if start == 0 < stop else []
        return [*first, *repeat(self.extra_keys(1, block_size), stop - start - len(first))]

    def identities(self, start: int, stop: int, block_size: int) -> list[ExtraKeys]:
        """What beside its tokens must be equal, in each of these blocks, for two blocks to be one content.

        The extra keys, and how long each media item is, which is in no digest: behind a shorter one with
        the same placeholders the next tokens could be the text's own.
        """
        found = self.all_extra_keys(start, stop, block_size)
        if self.media:
            for at, keys in enumerate(found):
                first = (start + at) * block_size
                touched = spans_between(self.media, first, first + block_size)
                if touched and keys is not None:
                    found[at] = (*keys, tuple(span.length for span in touched))
        return found

    def begins_like(self, other: CacheRequest, num_tokens: int) -> bool:
        """Whether the first ``num_tokens`` tokens are the same content in the same namespace."""
        return (
            self.namespace == other.namespace
            and self.run(0, num_tokens) == other.run(0, num_tokens)
            and spans_between(self.media, 0, num_tokens) == spans_between(other.media, 0, num_tokens)
            and _digest(self.prompt_embeds, num_tokens) == _digest(other.prompt_embeds, num_tokens)
        )

    def __repr__(self) -> str:
        return f"CacheRequest({self.request_id!r}, {self.num_tokens} tokens, {self.namespace})"


def _in_range(name: str, value: object, most: int) -> None:  # a caller may hand over anything
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise RequestError(
            f"{name} must be a whole number from 0 to {most}, not {value!r}", param=name, code="invalid_value"
        )


def _digest(embeds: PromptEmbeds | None, num_rows: int) -> bytes | None:
    return None if embeds is None else embeds.digest(0, num_rows)


def _negative() -> RequestError:
    return RequestError(
        "token ids must not be negative in a prompt with media or embeddings",
        param="prompt",
        code="invalid_value",
    )
