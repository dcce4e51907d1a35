"""KV events as bytes: vLLM 0.32's msgpack, byte for byte.

A batch is the array ``[timestamp, events, data-parallel rank]``; an event is a map with its class's name
under ``type``, without the fields that have vLLM's defaults.  What is read may also be as older vLLM, SGLang
(events as arrays that begin with the name) and newer vLLM (the batch as a map) write it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from headstart.cache.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVEvent
from headstart.errors import EventError

_NUMBER_BYTES = 8
_SPEC_KIND = "full_attention"  # vLLM's word for layers whose tokens see all that came before
_KINDS: dict[str, type[KVEvent]] = {
    "BlockStored": BlockStored,
    "BlockRemoved": BlockRemoved,
    "AllBlocksCleared": AllBlocksCleared,
}
_FIELDS: dict[type[KVEvent], tuple[str, ...]] = {  # in the order in which arrays have them
    BlockStored: (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
        *("extra_keys", "group_idx"),
    ),
    BlockRemoved: ("block_hashes", "medium", "group_idx"),
    AllBlocksCleared: (),
}


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What one step did to a cache, as it was read; ``ts`` is in seconds since 1970."""

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int | None = None


class _MapBatch(msgspec.Struct):
    ts: float
    events: list[list[Any] | dict[str, Any]]
    data_parallel_rank: int | None = None


class _ArrayBatch(_MapBatch, array_like=True):
    pass


def number_of(digest: BlockHash) -> int:
    """What stands for a digest where vLLM sends integers: its last 8 bytes, unsigned."""
    return int.from_bytes(digest[-_NUMBER_BYTES:], "big") if isinstance(digest, bytes) else digest


def encode(events: Iterable[KVEvent], *, ts: float, rank: int = 0, int_hashes: bool = True) -> bytes:
    """One batch.  Hashes as numbers of 64 bits, as vLLM sends them unless told otherwise, or whole."""
    return msgspec.msgpack.encode((ts, [_written(event, int_hashes=int_hashes) for event in events], rank))


def _written(event: KVEvent, *, int_hashes: bool) -> dict[str, Any]:
    def hashes(digests: Iterable[BlockHash]) -> list[BlockHash]:
        return [number_of(digest) for digest in digests] if int_hashes else list(digests)

    match event:
        case BlockStored():
            parent = event.parent_block_hash
            return {
                "type": "BlockStored",
                "block_hashes": hashes(event.block_hashes),
                "parent_block_hash": None if parent is None else hashes([parent])[0],
                "token_ids": event.token_ids,
                "block_size": event.block_size,
                "lora_id": None,
                "medium": event.medium,
                "lora_name": event.lora_name,
                **_present(extra_keys=event.extra_keys, group_idx=event.group_idx),
                "kv_cache_spec_kind": _SPEC_KIND,
            }
        case BlockRemoved():
            written = {"block_hashes": hashes(event.block_hashes), "medium": event.medium}
            return {"type": "BlockRemoved", **written, **_present(group_idx=event.group_idx)}
        case AllBlocksCleared():
            return {"type": "AllBlocksCleared"}


def _present(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def decode(payload: bytes, *, sequence: int = 0) -> EventBatch:
    """A batch, whose events get the ``sequence`` that the frame before the payload had.

    Kinds of events and fields that are not known are left out: a newer publisher may have more to say.
    Raises ``EventError`` for what is no batch.
    """
    try:
        raw = msgspec.msgpack.decode(payload)
        batch = msgspec.convert(raw, _ArrayBatch if isinstance(raw, list) else _MapBatch)
        read = [_read(event, sequence) for event in batch.events]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EventError(f"these {len(payload)} bytes are no batch of KV events: {error}") from error
    return EventBatch(batch.ts, [event for event in read if event is not None], batch.data_parallel_rank)


def _read(raw: list[Any] | dict[str, Any], sequence: int) -> KVEvent | None:
    name, values = (raw[:1], raw[1:]) if isinstance(raw, list) else ([raw.get("type")], raw)
    kind = _KINDS.get(str(name[0])) if name else None
    if kind is None:
        return None
    if isinstance(values, list):
        values = dict(zip(_FIELDS[kind], values, strict=False))
    event = msgspec.convert(values | {"sequence": sequence, "epoch": 0}, kind)
    if isinstance(event, BlockStored) and len(event.token_ids) != event.block_size * len(event.block_hashes):
        raise msgspec.ValidationError(
            f"{len(event.token_ids)} tokens are not {len(event.block_hashes)} blocks of {event.block_size}"
        )
    return event
