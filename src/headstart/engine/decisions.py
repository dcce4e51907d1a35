"""The records of a decision log: what was asked of a `KVCacheManager`, and what it answered.

A log is JSON lines: a `Header`, then one array for each record, whose first item says which it is.
Requests are numbered in the order in which the manager met them; only `Seen` and `Tokens` carry tokens,
and each token once.  `RecordingManager` (engine/recording.py) makes the records, `DecisionLog`
(engine/decision_log.py) writes them, headstart.lab.decisions reads and replays them.

A call's last field is its result; a string there is the name of the exception that it raised, whose text
could name a salt and is not recorded.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from headstart.config import CacheConfig

FORMAT = "headstart decision log"
VERSION = 3
"""Goes up whenever an older reader would misunderstand what is written, or fail on it."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: what wrote the log, and the core that it is about."""

    format: str = FORMAT
    version: int = VERSION
    headstart: str
    python: str
    started: str
    cache: CacheConfig


class Seen(msgspec.Struct, frozen=True, array_like=True, tag="request"):
    """Request ``number`` is new.  Its tokens are the first ``common`` ones of ``parent``, then ``tokens``.

    ``salt`` is a pseudonym: equal salts of one log have the same.  ``adapter`` is a name and a digest.
    ``num_prompt_tokens`` None is all of the tokens.
    ``media`` are digests with offset and length; ``prompt_embeds`` the 32-byte digests of the rows, one after
    the other, which are equal where the rows are.  ``tenant`` is a pseudonym, as the salt is.
    """

    number: int
    request_id: str
    tokens: list[int]
    salt: str | None = None
    adapter: tuple[str, str] | None = None
    parent: int | None = None
    common: int = 0
    skip_reading: bool = False
    num_prompt_tokens: int | None = None
    retention_priority: int = 0
    media: list[tuple[str, int, int]] = []
    prompt_embeds: bytes | None = None
    skip_writing: bool = False
    tenant: str | None = None


class Tokens(msgspec.Struct, frozen=True, array_like=True, tag="tokens"):
    """The tokens that the request has gained since it was last mentioned."""

    number: int
    tokens: list[int]


class Gone(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """The request will not be mentioned again."""

    number: int


class State(msgspec.Struct, frozen=True, array_like=True, tag="state"):
    """The manager's `state_digest` at this point; with ``closed`` it is the log's last record."""

    digest: str
    closed: bool = False


class BeginStep(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """``begin_step(now)``."""

    now: float
    result: str | None = None


class Found(msgspec.Struct, frozen=True, omit_defaults=True):
    """A hit of so many tokens; the last ``num_copied`` of them are a part of block ``src``.

    ``blocks`` is the CRC-32 of the whole blocks' ids as little-endian int32.
    """

    num_tokens: int
    blocks: int = 0
    src: int | None = None
    num_copied: int = 0


class Lookup(msgspec.Struct, frozen=True, array_like=True, tag="lookup"):
    """``get_computed_blocks(request)``."""

    number: int
    result: Found | str


class Granted(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fresh blocks; copies as (source, destination, tokens); replaced entries of the table as (old, new)."""

    blocks: list[int] = []
    copies: list[tuple[int, int, int]] = []
    replaced: list[tuple[int, int]] = []


class Allocate(msgspec.Struct, frozen=True, array_like=True, tag="allocate"):
    """``allocate_slots(request, count, hit)``: None if there is no room.

    ``hit`` is its number of tokens, if one was given: that of the last lookup, whole or without its copy.
    """

    number: int
    count: int
    hit: int | None
    result: Granted | str | None


class Fork(msgspec.Struct, frozen=True, array_like=True, tag="fork"):
    """``fork(request, child)``."""

    number: int
    child: int
    result: str | None = None


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """``commit_step()``, and how many blocks are free then."""

    result: int | str


class Rollback(msgspec.Struct, frozen=True, array_like=True, tag="rollback"):
    """``rollback_step()``: the ids that it returned."""

    result: tuple[str, ...] | str


class Free(msgspec.Struct, frozen=True, array_like=True, tag="free"):
    """``free(request)``: the ids that it returned."""

    number: int
    result: tuple[str, ...] | str


class Reset(msgspec.Struct, frozen=True, array_like=True, tag="reset"):
    """``reset_prefix_cache()``."""

    result: bool | str


class Pinned(msgspec.Struct, frozen=True):
    """So many blocks, until then."""

    num_blocks: int
    until: float


class PinCall(msgspec.Struct, frozen=True, array_like=True, tag="pin"):
    """``pin(request, seconds)``: None if that would be too much."""

    number: int
    seconds: float
    result: Pinned | str | None


class RetainCall(msgspec.Struct, frozen=True, array_like=True, tag="retain"):
    """``retain(request, seconds, name)``: None if nothing can be kept."""

    number: int
    seconds: float
    name: str | None
    result: Pinned | str | None


class Unpin(msgspec.Struct, frozen=True, array_like=True, tag="unpin"):
    """``unpin(request_id)``."""

    request_id: str
    result: bool | str


Call = BeginStep | Lookup | Allocate | Fork | Commit | Rollback | Free | Reset | PinCall | RetainCall | Unpin
Record = Call | Seen | Tokens | Gone | State


class Sink(Protocol):
    """Where records go."""

    def write(self, record: Record) -> None:
        """Take one; it may be kept until `flush`."""
        ...

    def flush(self) -> None:
        """Let what was written be safe from the death of this process."""
        ...

    def close(self) -> None:
        """Flush; what is written later is ignored.  Harmless when repeated."""
        ...
