"""The block-hash chain, byte for byte vLLM's `sha256_cbor`."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headstart.cache import Adapter, CacheRequest, Namespace
from headstart.cache.hashing import DEFAULT_SEED, BlockHasher, _integer, block_hash_chain
from headstart.errors import ConfigError

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "vllm_sha256_cbor.json").read_text())
ROOTS: dict[str, str] = GOLDEN["parent_of_first_block"]
CHAINS: list[dict[str, Any]] = GOLDEN["chains"]
by_id = pytest.mark.parametrize("vector", CHAINS, ids=[vector["id"] for vector in CHAINS])


@pytest.fixture(autouse=True)
def unset_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)


def namespace_of(vector: dict[str, Any]) -> Namespace:
    adapter = Adapter(*vector["adapter"]) if vector["adapter"] else None
    return Namespace(adapter=adapter, salt=vector["salt"])


def extra_keys_of(vector: dict[str, Any]) -> list[tuple[tuple[str, ...], ...] | None]:
    return [None if keys is None else tuple(map(tuple, keys)) for keys in vector["extra_keys"]]


# vLLM's bytes


@by_id
def test_a_chain_is_vllms(vector: dict[str, Any]) -> None:
    chain = block_hash_chain(
        vector["tokens"], block_size=vector["block_size"], extra_keys=extra_keys_of(vector)
    )
    assert [digest.hex() for digest in chain] == vector["digests"]


@by_id
def test_a_requests_digests_are_vllms(vector: dict[str, Any]) -> None:
    request = CacheRequest("r", vector["tokens"], namespace=namespace_of(vector))
    digests = BlockHasher(vector["block_size"]).extend(request, len(vector["digests"]))
    assert [digest.hex() for digest in digests] == vector["digests"]


@by_id
def test_a_namespaces_keys_are_vllms(vector: dict[str, Any]) -> None:
    keys = [namespace_of(vector).extra_keys(index) for index in range(len(vector["digests"]))]
    assert keys == extra_keys_of(vector)  # items 5 and 6: the salt in block 0, the adapter in every block


@pytest.mark.parametrize("seed", ROOTS)
def test_the_parent_of_the_first_block_is_vllms(seed: str) -> None:
    hasher = BlockHasher(4, seed=None if seed == "default" else seed)
    expected = hasher.block_digest(bytes.fromhex(ROOTS[seed]), [1, 2, 3, 4], None)
    assert hasher.block_digest(None, [1, 2, 3, 4], None) == expected


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"), (23, "17"), (24, "1818"), (255, "18ff"), (256, "190100"), (65535, "19ffff"),
        (65536, "1a00010000"), (2**32 - 1, "1affffffff"), (2**32, "1b0000000100000000"),
        (2**64 - 1, "1bffffffffffffffff"), (-1, "20"), (-24, "37"), (-25, "3818"), (-1000, "3903e7"),
    ],
)  # fmt: skip
def test_integers_take_their_shortest_form(value: int, encoded: str) -> None:
    assert _integer(value).hex() == encoded  # RFC 8949, section 3.1


def test_long_blocks_and_texts_have_long_heads() -> None:
    name, digest = "é" * 150, "d" * 24  # 300 bytes and 24
    message = (
        b"\x83" + b"\x58\x20" + bytes.fromhex(ROOTS["default"])
        + b"\x99\x01\x2c" + b"\x05" * 300
        + b"\x81\x83" + b"\x64lora" + b"\x79\x01\x2c" + name.encode() + b"\x78\x18" + digest.encode()
    )  # fmt: skip
    [found] = block_hash_chain([5] * 300, block_size=300, extra_keys=[(("lora", name, digest),)])
    assert found == hashlib.sha256(message).digest()


# Seeds


def chain_in_a_fresh_interpreter(seed: str | None) -> list[str]:
    program = (
        "from headstart.cache.hashing import block_hash_chain\n"
        "print(*[digest.hex() for digest in block_hash_chain(range(1, 9), block_size=4)])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    if seed is not None:
        environment["PYTHONHASHSEED"] = seed
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_every_process_computes_the_same_chain() -> None:
    # item 11, cases 1 and 19: the same by default, and another one for each PYTHONHASHSEED
    chains = [chain_in_a_fresh_interpreter(seed) for seed in (None, None, "0", "1", "42")]
    assert chains[0] == chains[1]
    for seed, chain in zip([DEFAULT_SEED, "0", "1", "42"], chains[1:], strict=True):
        assert chain == [digest.hex() for digest in block_hash_chain(range(1, 9), block_size=4, seed=seed)]
    assert len({chain[0] for chain in chains}) == 4


def test_a_given_seed_goes_before_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = block_hash_chain(range(4), block_size=4)
    monkeypatch.setenv("PYTHONHASHSEED", "42")
    assert block_hash_chain(range(4), block_size=4) != plain
    assert block_hash_chain(range(4), block_size=4, seed=DEFAULT_SEED) == plain
    monkeypatch.setenv("PYTHONHASHSEED", "")  # as Python itself reads it: not set
    assert block_hash_chain(range(4), block_size=4) == plain


# The chain


def test_only_full_blocks_have_digests() -> None:
    for length, count in ((0, 0), (3, 0), (4, 1), (7, 1), (8, 2), (10, 2)):  # item 1
        chain = block_hash_chain(range(length), block_size=4)
        assert len(chain) == count
        assert all(len(digest) == 32 for digest in chain)


def test_a_digest_covers_all_that_came_before() -> None:
    one = block_hash_chain([1, 2, 3, 4, 9, 9, 9, 9], block_size=4)  # item 2
    other = block_hash_chain([1, 2, 3, 5, 9, 9, 9, 9], block_size=4)
    alone = block_hash_chain([9, 9, 9, 9], block_size=4)
    assert len({one[1], other[1], alone[0]}) == 3


def test_no_extra_keys_is_not_an_empty_list_of_them() -> None:
    hasher = BlockHasher(4)  # item 4
    assert hasher.block_digest(None, [1, 2, 3, 4], None) != hasher.block_digest(None, [1, 2, 3, 4], ())


def test_digests_grow_with_the_request() -> None:
    hasher, tokens = BlockHasher(4), list(range(100, 118))  # item 3
    request = CacheRequest("r", tokens[:6], namespace=Namespace(salt="s", adapter=Adapter("a", "1")))
    assert len(hasher.extend(request, 1)) == 1
    for token in tokens[6:]:
        request.append(token)
        hasher.extend(request, request.num_tokens // 4)
    fresh = CacheRequest("fresh", tokens, namespace=request.namespace)
    assert request.digests == hasher.extend(fresh, 4)
    keys = [request.namespace.extra_keys(index) for index in range(4)]
    assert request.digests == block_hash_chain(tokens, block_size=4, extra_keys=keys)


def test_asking_for_fewer_digests_forgets_none() -> None:
    hasher, request = BlockHasher(4), CacheRequest("r", range(16))
    four = list(hasher.extend(request, 4))
    assert hasher.extend(request, 2) == four


def test_an_unknown_algorithm_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="must be sha256_cbor, not 'md5'"):
        BlockHasher(4, algorithm="md5")
    with pytest.raises(ConfigError, match="must be sha256_cbor, not 'md5'"):
        block_hash_chain([1], block_size=1, algorithm="md5")
