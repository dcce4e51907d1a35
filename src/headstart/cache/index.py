"""What the two indexes have in common: the protocol that the manager drives, and its small results.

An index knows which blocks hold which tokens, and owns the blocks' lives: it takes them from the
pool, makes them findable, and gives them back.  The manager owns requests, steps and statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from headstart.cache.keys import CacheRequest


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy the first ``num_tokens`` slots of block ``src`` into block ``dst``.

    All sources of a step are read before any destination is written.
    """

    src: int
    dst: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PartialBlock:
    """The first ``num_tokens`` slots of block ``src`` equal the prompt's next tokens."""

    src: int
    num_tokens: int


@dataclass(slots=True)
class Match:
    """What an index found: whole blocks to share and, in the radix index, a part of one to copy.

    ``shared_with`` names the requests whose uncommitted blocks are among them; ``place`` is the
    index's own note of where the match ended.
    """

    block_ids: list[int] = field(default_factory=list)
    copy: PartialBlock | None = None
    shared_with: frozenset[str] = frozenset()
    place: Any = None


@dataclass(slots=True)
class Mark:
    """How a lease stood before a step's first grant, so that the grant can be taken back."""

    num_blocks: int
    num_published: int
    place: Any = None


class Lease:
    """The blocks one request holds, in order: its block table.

    The first ``num_published`` of them are dealt with by the index: findable, or known to repeat
    what is.  Where they have collided with other content, no more of them ever are.  Only the index that
    made a lease changes it.
    """

    __slots__ = ("block_ids", "has_collided", "num_published", "request")

    def __init__(self, request: CacheRequest, block_ids: list[int]) -> None:
        self.request = request
        self.block_ids = block_ids
        self.num_published = len(block_ids)
        self.has_collided = False


class PrefixIndex(Protocol):
    """What the manager asks of an index.  Both pass tests/contracts/test_prefix_index_contract.py."""

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can really be had now: unused ones and cached ones that nothing holds."""
        ...

    @property
    def num_evicted_blocks(self) -> int:
        """How often a cached block was given up for its slot."""
        ...

    @property
    def num_collisions(self) -> int:
        """How many requests met other content under a digest of theirs."""
        ...

    def free_block_ids(self, request: CacheRequest | None = None) -> list[int]:
        """The same blocks, the next to be taken first (by ``request``, where tenants have shares)."""
        ...

    def match(self, request: CacheRequest, limit: int) -> Match:
        """The longest cached prefix of at most ``limit`` tokens.  Changes nothing."""
        ...

    def cost(self, match: Match) -> int:
        """How many free blocks would stop being free if the match were admitted."""
        ...

    def admit(self, request: CacheRequest, match: Match) -> Lease:
        """A lease that holds the matched blocks; until the step ends the block to copy from is kept."""
        ...

    def begin_step(self, now: float) -> None:
        """Time has come to ``now`` (seconds)."""
        ...

    def take(self, lease: Lease, count: int) -> None:
        """Add ``count`` fresh blocks, forgetting what they held.  The caller has seen to the room."""
        ...

    def fork(self, lease: Lease, request: CacheRequest) -> Lease:
        """A second lease on the same blocks."""
        ...

    def holders(self, block_id: int) -> int:
        """How many leases hold a block that is not published."""
        ...

    def replace(self, lease: Lease, position: int, block_id: int) -> int:
        """Put a block in the place of an unpublished one; returns that, which the lease still holds."""
        ...

    def drop(self, block_id: int) -> None:
        """Let go of one hold on a block that is not published."""
        ...

    def mark(self, lease: Lease) -> Mark:
        """The lease as it stands, for `undo`."""
        ...

    def publish(self, lease: Lease, num_blocks: int) -> frozenset[str]:
        """Make the first ``num_blocks`` blocks findable, pending until the step commits.

        Returns the other requests whose own pending blocks this came to rest on.
        """
        ...

    def commit(self) -> None:
        """The step's K and V are written: nothing is pending any more."""
        ...

    def end_step(self) -> None:
        """Let go of what was kept for the step's copies."""
        ...

    def undo(self, lease: Lease, mark: Mark) -> None:
        """Take back what was taken and published since ``mark``."""
        ...

    def release(self, lease: Lease, num_tokens: int) -> None:
        """Give all blocks back; the first ``num_tokens`` tokens' K and V are written and stay findable."""
        ...

    def clear(self) -> None:
        """Forget everything.  Nothing may be leased."""
        ...

    def pin(self, name: str, request: CacheRequest, most: int) -> bool:
        """Hold back what is cached of the request's tokens (committed, whole blocks) from eviction.

        False, and nothing has changed, if more than ``most`` blocks would be pinned in all.  What the name
        had pinned before is let go.
        """
        ...

    def unpin(self, name: str) -> None:
        """Let go what the name has pinned, if anything."""
        ...

    def num_pinned_blocks(self, name: str) -> int:
        """How many blocks are left of what the name has pinned."""
        ...

    def state(self, leases: list[Lease]) -> Iterator[object]:
        """All that decides what comes next, but for `free_block_ids`: plain values, and bytes for runs.

        It names no object and no salt, so that equal histories under other salts give equal values.
        """
        ...

    def check(self, leases: list[Lease], kept: list[int]) -> None:
        """Prove the laws that concern the index (``CacheError`` with the numbers otherwise).

        ``kept`` are blocks that replaced entries of tables still hold until the step ends.
        """
        ...
