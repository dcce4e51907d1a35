"""What identifies cached content: the tokens, and the namespace that they must never leave.

Both indexes, and later the tiers, the events and the router, take their key material from here and
from nowhere else, so that no two of them can disagree on what may be shared.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headstart.errors import RequestError

if TYPE_CHECKING:
    from typing_extensions import Buffer

TOKEN_BYTES = 4
"""Bytes of one token in a run: a little-endian int32."""

HIGHEST_PRIORITY = 100
"""Of retention priorities; 0 is the lowest, and that of requests that name none."""

_PIECE = 1024  # tokens packed at once: few enough that they stay in the processor's cache meanwhile
_pack_piece = struct.Struct(f"<{_PIECE}i").pack

ExtraKeys = tuple[tuple[str, ...], ...] | None
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
        if salt is not None and not (isinstance(salt, str) and salt and _is_text(salt)):
            raise RequestError(
                f"cache_salt must be a non-empty string or absent, got {self.salt!r}",
                param="cache_salt",
                code="invalid_value",
            )

    def extra_keys(self, block_index: int) -> ExtraKeys:
        """The digest's typed extra parts for a request's ``block_index``-th block, in vLLM's order.

        The adapter enters every block; the salt only the first, since the chain carries it on.
        """
        keys: list[tuple[str, ...]] = []
        if self.adapter is not None:
            keys.append(("lora", self.adapter.name, self.adapter.digest))
        if self.salt is not None and block_index == 0:
            keys.append(("cache_salt", self.salt))
        return tuple(keys) if keys else None


def _is_text(text: str) -> bool:
    """Whether the text can be written as UTF-8: half of a surrogate pair cannot."""
    return not any(0xD800 <= ord(letter) <= 0xDFFF for letter in text)


SHARED = Namespace()
"""The namespace of requests that name neither an adapter nor a salt."""


class CacheRequest:
    """One request's tokens and namespace, as the cache sees them.

    ``token_ids`` is an iterable of ints, or a buffer that is copied in one go: an ``array`` or a numpy
    array of int32, or the ``bytes`` of little-endian int32.  Decoded tokens are appended.
    ``skip_reading`` is for requests that want the logits of their prompt: nothing that others computed is
    a hit for them, but what they compute can be found.  They are left out of the statistics.
    ``num_prompt_tokens`` says how many of the tokens are the prompt (None: all), ``retention_priority`` how
    long to keep what the request uses: 0 to 100, the higher the longer.
    Raises ``RequestError`` for what is not a list of int32, and for numbers out of range.
    """

    __slots__ = (
        *("__weakref__", "digests", "namespace", "num_admissions", "num_committed"),
        *("num_prompt_tokens", "request_id", "retention_priority", "skip_reading", "tokens"),
    )

    def __init__(
        self,
        request_id: str,
        token_ids: Iterable[int] | Buffer,
        *,
        namespace: Namespace = SHARED,
        skip_reading: bool = False,
        num_prompt_tokens: int | None = None,
        retention_priority: int = 0,
    ) -> None:
        self.request_id = request_id
        self.namespace = namespace
        self.skip_reading = skip_reading
        self.tokens = _run_of(token_ids)
        """All tokens as one run: little-endian int32.  A bytearray, so that comparing it copies nothing."""
        if num_prompt_tokens is not None:
            _in_range("num_prompt_tokens", num_prompt_tokens, self.num_tokens)
        _in_range("retention_priority", retention_priority, HIGHEST_PRIORITY)
        self.num_prompt_tokens = self.num_tokens if num_prompt_tokens is None else num_prompt_tokens
        self.retention_priority = retention_priority
        self.digests: list[bytes] = []
        """Digests of the leading full blocks, as far as the `hash` index has needed them; its own."""
        self.num_admissions = 0
        """How often the manager admitted it; more than once after a preemption.  The manager's own."""
        self.num_committed = 0
        """How many leading tokens were ever computed for it, in steps that committed.  The manager's own."""

    @property
    def num_readable(self) -> int:
        """The most tokens that may be a hit: the last must be computed, for its logits.

        With ``skip_reading`` those only that were computed for this very request, before it was preempted.
        """
        return min(self.num_tokens - 1, self.num_committed) if self.skip_reading else self.num_tokens - 1

    @property
    def num_tokens(self) -> int:
        """Prompt tokens and the decoded tokens appended since."""
        return len(self.tokens) // TOKEN_BYTES

    def append(self, token_id: int) -> None:
        """Add one decoded token."""
        self.tokens += token_id.to_bytes(TOKEN_BYTES, "little", signed=True)

    def run(self, start: int, stop: int) -> bytes:
        """Tokens ``start`` to ``stop`` (exclusive) as the bytes that indexes compare."""
        with memoryview(self.tokens) as view:
            return bytes(view[start * TOKEN_BYTES : stop * TOKEN_BYTES])

    def token_ids(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Tokens ``start`` to ``stop`` (exclusive; None is the end) as ints."""
        return _ints(self.run(start, self.num_tokens if stop is None else stop)).tolist()

    def __repr__(self) -> str:
        return f"CacheRequest({self.request_id!r}, {self.num_tokens} tokens, {self.namespace})"


def _in_range(name: str, value: object, most: int) -> None:  # a caller may hand over anything
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise RequestError(
            f"{name} must be a whole number from 0 to {most}, not {value!r}", param=name, code="invalid_value"
        )


def _ints(run: bytes) -> array[int]:
    tokens = array("i", run)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens


def _run_of(token_ids: Iterable[int] | Buffer) -> bytearray:
    if isinstance(token_ids, bytes | bytearray):
        if len(token_ids) % TOKEN_BYTES:
            raise _not_tokens(f"{len(token_ids)} bytes are no whole number of them")
        return bytearray(token_ids)
    try:
        view = memoryview(token_ids)  # type: ignore[arg-type]  # whether it is a buffer is the question
    except TypeError:
        view = None
    try:
        if view is not None and view.format == "i" and view.ndim == 1 and sys.byteorder == "little":
            return bytearray(view)
        return _pack(list(token_ids) if view is None else view.tolist())  # type: ignore[arg-type]
    except (TypeError, ValueError, NotImplementedError, struct.error) as error:
        raise _not_tokens(str(error)) from error


def _pack(tokens: Sequence[int]) -> bytearray:
    """The tokens as a run; twice as fast as an array of them."""
    rest = len(tokens) - len(tokens) % _PIECE
    pieces = [_pack_piece(*tokens[start : start + _PIECE]) for start in range(0, rest, _PIECE)]
    run = bytearray().join(pieces)
    run += struct.pack(f"<{len(tokens) - rest}i", *tokens[rest:])
    return run


def _not_tokens(why: str) -> RequestError:
    return RequestError(f"token ids must be integers of 32 bits: {why}", param="prompt", code="invalid_value")
