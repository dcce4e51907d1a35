"""KV events: what became findable and what is no longer so, for those who follow a cache from outside.

`EventLog` listens to an index and turns what it hears into events; `EventReplica` turns events back into
what can be found (law I8).  Their wire form and their way out of the process are the engine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headstart.cache.hashing import BlockHasher
from headstart.cache.keys import CacheRequest, ExtraKeys
from headstart.config import CacheConfig

BlockHash = int | bytes
"""A block's digest (32 bytes), or the number of 64 bits that stands for it on the wire."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks that follow each other can be found: the first after ``parent_block_hash``, each after the last.

    ``token_ids`` are all their tokens, ``block_size`` for each.  ``extra_keys`` has one entry for each block:
    what entered its digest beside the tokens (adapter, salt), or None.  ``parent_block_hash`` None is the
    beginning of a prompt.  For ``epoch`` and ``sequence`` see `EventLog`.
    """

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_name: str | None = None
    extra_keys: tuple[tuple[Any, ...] | None, ...] | None = None
    medium: str | None = None
    group_idx: int | None = None
    epoch: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """These blocks cannot be found any more."""

    block_hashes: tuple[BlockHash, ...]
    medium: str | None = None
    group_idx: int | None = None
    epoch: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Nothing can be found any more."""

    epoch: int = 0
    sequence: int = 0


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventLog:
    """A `Listener` that keeps events until somebody takes them, batch by batch.

    ``epoch`` is one life of a cache, and a number that grows from each to the next.  A batch is what one
    `take` returned, and ``sequence`` its number: ``epoch`` itself belongs to the `AllBlocksCleared` with
    which whoever publishes begins, the first batch taken is ``epoch + 1``, and so on without a gap.

    Only blocks that are stored are hashed; a hit costs nothing.  It holds one digest for each block that can
    be found, and all events since the last `take`: who turns events on must take them.
    """

    def __init__(self, config: CacheConfig, epoch: int = 0) -> None:
        self._block_size = config.block_size
        self._medium = config.kv_event_medium
        self._hasher = BlockHasher(config.block_size, algorithm=config.hash_algorithm)
        self._digests: dict[int, bytes] = {}  # by block id, of what was announced
        self._events: list[KVEvent] = []
        self._epoch = epoch
        self._sequence = epoch + 1

    def take(self) -> list[KVEvent]:
        """The events since the last time, in order; the caller's from now on."""
        events, self._events = self._events, []
        self._sequence += bool(events)
        return events

    def stored(self, request: CacheRequest, start: int, block_ids: Sequence[int], after: int | None) -> None:
        """See `Listener`, as for all of these."""
        size, stop = self._block_size, start + len(block_ids)
        parent = None if after is None else self._digests[after]
        tokens = request.token_ids(start * size, stop * size)
        extra = request.all_extra_keys(start, stop, size)
        digests = request.digests[start:stop]  # the hash index has them all, the radix index none
        if not digests:
            digests = self._chain(parent, tokens, extra)
        self._digests.update(zip(block_ids, digests, strict=True))
        adapter = request.namespace.adapter
        self._events.append(
            BlockStored(
                block_hashes=tuple(digests),
                parent_block_hash=parent,
                token_ids=tuple(tokens),
                block_size=size,
                lora_name=None if adapter is None else adapter.name,
                extra_keys=tuple(map(_untagged, extra)),
                medium=self._medium,
                group_idx=0,
                epoch=self._epoch,
                sequence=self._sequence,
            )
        )

    def moved(self, block_id: int, to: int) -> None:
        """No event: the content can be found as before."""
        self._digests[to] = self._digests.pop(block_id)

    def removed(self, block_id: int) -> None:
        """At once, so that a step's removals come before what it stores."""
        digests = (self._digests.pop(block_id),)
        self._events.append(BlockRemoved(digests, self._medium, 0, self._epoch, self._sequence))

    def cleared(self) -> None:
        """Whatever was there."""
        self._digests.clear()
        self._events.append(AllBlocksCleared(self._epoch, self._sequence))

    def _chain(self, parent: bytes | None, tokens: list[int], extra: list[ExtraKeys]) -> list[bytes]:
        digests: list[bytes] = []
        for index, keys in enumerate(extra):
            block = tokens[index * self._block_size : (index + 1) * self._block_size]
            parent = self._hasher.block_digest(parent, block, keys)
            digests.append(parent)
        return digests


def _untagged(keys: ExtraKeys) -> tuple[Any, ...] | None:
    """Extra keys as vLLM's events have them: an adapter by its name, a salt as it is, both without tags."""
    if keys is None:
        return None
    return tuple(values[0] if tag == "lora" or len(values) == 1 else values for tag, *values in keys)


@dataclass(frozen=True, slots=True)
class ReplicaBlock:
    """A block that can be found elsewhere: its tokens, and the hash of the block before it."""

    parent_block_hash: BlockHash | None
    token_ids: tuple[int, ...]


class EventReplica:
    """What can be found in another's cache, rebuilt from its events.

    ``blocks`` has it by hash.  A replica that first hears of a cache in the middle of its life knows less
    than there is, never more.  ``next_sequence`` is the number of the batch that should come next; None at
    first.
    """

    def __init__(self) -> None:
        self.blocks: dict[BlockHash, ReplicaBlock] = {}
        self.next_sequence: int | None = None

    def apply(self, events: Sequence[KVEvent]) -> bool:
        """Take in one batch; one that was taken in before changes nothing.

        False, and nothing has changed, where batches before this one are missing: ask for a replay from
        ``next_sequence``.  If those are not to be had any more, `forget`, and apply it again.  A batch that
        begins with `AllBlocksCleared` is a beginning, whatever its number.
        """
        if not events:
            return True
        sequence, expected = events[0].sequence, self.next_sequence
        if expected is not None and not isinstance(events[0], AllBlocksCleared) and sequence != expected:
            return sequence < expected
        self._follow(events)
        self.next_sequence = sequence + 1
        return True

    def forget(self) -> None:
        """Begin anew."""
        self.blocks.clear()
        self.next_sequence = None

    def _follow(self, events: Iterable[KVEvent]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    for block_hash in event.block_hashes:  # one that is not known does not stop the others
                        self.blocks.pop(block_hash, None)
                case AllBlocksCleared():
                    self.blocks.clear()

    def _store(self, event: BlockStored) -> None:
        parent, size = event.parent_block_hash, event.block_size
        for index, block_hash in enumerate(event.block_hashes):
            tokens = event.token_ids[index * size : (index + 1) * size]
            self.blocks[block_hash] = ReplicaBlock(parent, tokens)
            parent = block_hash
