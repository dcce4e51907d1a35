"""The wire form of KV events: vLLM's bytes out, and whatever speaks that language in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headstart.cache.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from headstart.cache.hashing import block_hash_chain
from headstart.engine.event_wire import decode, encode, number_of
from headstart.errors import EventError

GOLDEN: dict[str, str] = json.loads((Path(__file__).parent / "golden" / "vllm_kv_events.json").read_text())
CHAIN = tuple(block_hash_chain(range(8), block_size=4, seed="vllm-none-hash"))
EVENTS: list[KVEvent] = [  # what vLLM was given for the golden bytes
    BlockStored(CHAIN, None, tuple(range(8)), 4, None, (None, None), "GPU", 0),
    BlockRemoved(CHAIN[1:], "GPU", 0),
    AllBlocksCleared(),
]


@pytest.mark.parametrize("form", ["int", "bytes"])
def test_a_batch_is_vllms_to_the_byte(form: str) -> None:
    assert encode(EVENTS, ts=1.5, int_hashes=form == "int").hex() == GOLDEN[form]


@pytest.mark.parametrize("form", ["int", "bytes"])
def test_vllms_bytes_are_read(form: str) -> None:
    batch = decode(bytes.fromhex(GOLDEN[form]), sequence=77)
    assert (batch.ts, batch.data_parallel_rank) == (1.5, 0)
    first, second, third = batch.events
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockRemoved)
    assert first.block_hashes == (tuple(map(number_of, CHAIN)) if form == "int" else CHAIN)
    assert (first.token_ids, first.extra_keys, first.medium) == (tuple(range(8)), (None, None), "GPU")
    assert second.block_hashes == first.block_hashes[1:]
    assert third == AllBlocksCleared(sequence=77)
    assert encode(batch.events, ts=1.5).hex() == GOLDEN["int"]


def test_a_number_is_the_last_eight_bytes() -> None:
    assert number_of(CHAIN[0]) == 1088283741995145368
    assert number_of(number_of(CHAIN[0])) == 1088283741995145368


def test_parents_adapters_and_salts_go_both_ways() -> None:
    event = BlockStored((7,), 2**64 - 1, (1, 2), 2, "lo", (("lo", "s"),), "CPU", 1)
    assert decode(encode([event], ts=0.0)).events == [event]


ARRAYS = [
    # older vLLM, and SGLang with its signed hashes: no medium, no more
    (["BlockStored", [-5, 6], 4, [1, 2, 3, 4], 2, None], BlockStored((-5, 6), 4, (1, 2, 3, 4), 2)),
    (
        ["BlockStored", [5], None, [1, 2], 2, 9, "GPU", "lo", [["lo"]], 0, "full_attention", None, "more"],
        BlockStored((5,), None, (1, 2), 2, "lo", (("lo",),), "GPU", 0),
    ),
    (["BlockRemoved", [5, 6]], BlockRemoved((5, 6))),
    (["BlockRemoved", [5], "CPU"], BlockRemoved((5,), "CPU")),
    (["AllBlocksCleared"], AllBlocksCleared()),
]


@pytest.mark.parametrize(("raw", "event"), ARRAYS)
def test_events_as_arrays_are_read(raw: list[Any], event: KVEvent) -> None:
    assert decode(msgspec.msgpack.encode([1.0, [raw]])).events == [event]


def test_batches_as_maps_are_read() -> None:  # as vLLM's newest sources write them
    payload = msgspec.msgpack.encode({"ts": 2.0, "events": [{"type": "AllBlocksCleared"}], "new": 1})
    batch = decode(payload, sequence=3)
    assert (batch.ts, batch.events, batch.data_parallel_rank) == (2.0, [AllBlocksCleared(sequence=3)], None)


def test_what_is_not_known_is_left_out_and_the_rest_is_read() -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [1], "medium": None, "sequence": 9, "colour": "red"}
    raw = [{"type": "BlockPinned", "block_hashes": [1]}, ["BlockMoved", 1, 2], [], {}, removed]
    assert decode(msgspec.msgpack.encode([0, raw, None, "more"]), sequence=4).events == [
        BlockRemoved((1,), sequence=4)
    ]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(None),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode(["now", []]),
        msgspec.msgpack.encode([1.0, ["BlockRemoved"]]),
        msgspec.msgpack.encode([1.0, [["BlockRemoved"]]]),
        msgspec.msgpack.encode([1.0, [["BlockRemoved", ["x"]]]]),
        msgspec.msgpack.encode([1.0, [["BlockStored", [1, 2], None, [1, 2, 3], 2]]]),  # case 101
    ],
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(EventError, match=f"^these {len(payload)} bytes are no batch of KV events: "):
        decode(payload)
