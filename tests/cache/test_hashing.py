"""The block-hash chain, byte for byte vLLM's, for each of its algorithms."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import xxhash

from headstart.cache import Adapter, CacheRequest, MediaSpan, Namespace, PromptEmbeds
from headstart.cache.hashing import ALGORITHMS, DEFAULT_SEED, BlockHasher, block_hash_chain
from headstart.cache.keys import ExtraKeys
from headstart.errors import ConfigError

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "vllm_block_hashes.json").read_text())
ROOTS: dict[str, dict[str, str]] = GOLDEN["parent_of_first_block"]
CHAINS: list[dict[str, Any]] = GOLDEN["chains"]
by_id = pytest.mark.parametrize("vector", CHAINS, ids=[vector["id"] for vector in CHAINS])
by_algorithm = pytest.mark.parametrize("algorithm", ROOTS)
IMAGE = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def unset_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)


def request_of(vector: dict[str, Any]) -> CacheRequest:
    adapter = Adapter(*vector["adapter"]) if vector["adapter"] else None
    media = [MediaSpan(long(identifier), *place) for identifier, *place in vector["media"]]
    tokens = [token % 2**31 for token in vector["tokens"]]  # one vector has larger ones than models do
    namespace = Namespace(adapter, vector["salt"])
    return CacheRequest("r", tokens, namespace=namespace, media=media)


def long(identifier: str) -> str:
    """A digest of full length for a vector's short name of an image."""
    return hashlib.sha256(identifier.encode()).hexdigest()


def extra_keys_of(vector: dict[str, Any]) -> list[ExtraKeys]:
    return [None if keys is None else tuple(map(tuple, keys)) for keys in vector["extra_keys"]]


# vLLM's bytes


@by_id
@by_algorithm
def test_a_chain_is_vllms(vector: dict[str, Any], algorithm: str) -> None:
    chain = block_hash_chain(
        vector["tokens"],
        block_size=vector["block_size"],
        algorithm=algorithm,
        extra_keys=extra_keys_of(vector),
    )
    assert [digest.hex() for digest in chain] == vector[algorithm]


@by_id
def test_a_requests_keys_are_vllms(vector: dict[str, Any]) -> None:
    request = request_of(vector)  # items 5 to 9
    found = request.all_extra_keys(0, len(vector["extra_keys"]), vector["block_size"])
    wanted = [
        keys and tuple((tag, long(name), *at) if tag == "mm" else (tag, name, *at) for tag, name, *at in keys)
        for keys in vector["extra_keys"]
    ]
    assert found == wanted


@pytest.mark.parametrize("vector", [vector for vector in CHAINS if not vector["media"]])
@by_algorithm
def test_a_requests_digests_are_vllms(vector: dict[str, Any], algorithm: str) -> None:
    # The vectors with images name them in fewer letters than a digest may have; see the next test.
    digests = BlockHasher(vector["block_size"], algorithm=algorithm).extend(request_of(vector), 2)
    assert [digest.hex() for digest in digests] == vector[algorithm]


@by_id
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_requests_digests_are_the_chains(vector: dict[str, Any], algorithm: str) -> None:
    request, size = request_of(vector), vector["block_size"]
    count = request.num_tokens // size
    keys = request.all_extra_keys(0, count, size)
    chain = block_hash_chain(request.token_ids(), block_size=size, algorithm=algorithm, extra_keys=keys)
    assert BlockHasher(size, algorithm=algorithm).extend(request, count) == chain


@pytest.mark.parametrize(("algorithm", "sha256"), [("xxhash", "sha256"), ("xxhash_cbor", "sha256_cbor")])
def test_xxhash_is_taken_of_the_same_bytes(algorithm: str, sha256: str) -> None:
    vector = CHAINS[0]
    data = bytes.fromhex(vector["serialised"][sha256][0])
    assert hashlib.sha256(data).hexdigest() == vector[sha256][0]
    parent = bytes.fromhex(ROOTS[sha256]["default"])
    short = parent[:16]  # xxh3_128 makes 16 bytes, so the parent's head is another
    heads = {"xxhash": (b"C\x20", b"C\x10"), "xxhash_cbor": (b"\x58\x20", b"\x50")}[algorithm]
    data = data.replace(heads[0] + parent, heads[1] + short)
    if algorithm == "xxhash":  # the frame's length
        data = data[:3] + (int.from_bytes(data[3:11], "little") - 16).to_bytes(8, "little") + data[11:]
    found = BlockHasher(4, algorithm=algorithm, seed="s").block_digest(short, range(4), None)
    assert found == xxhash.xxh3_128_digest(data)
    assert xxhash.xxh3_128_hexdigest(b"") == "99aa06d3014798d86001c324468d497f"  # as its specification has it


@pytest.mark.parametrize("seed", ["default", "0", "42"])
@by_algorithm
def test_the_parent_of_the_first_block_is_vllms(seed: str, algorithm: str) -> None:
    hasher = BlockHasher(4, algorithm=algorithm, seed=None if seed == "default" else seed)
    expected = hasher.block_digest(bytes.fromhex(ROOTS[algorithm][seed]), [1, 2, 3, 4], None)
    assert hasher.block_digest(None, [1, 2, 3, 4], None) == expected


def test_embeddings_enter_as_the_digest_of_the_blocks_rows() -> None:
    rows = random.Random(0).randbytes(6 * 8)
    request = CacheRequest("r", [0] * 8, prompt_embeds=PromptEmbeds(rows, 6))
    for index, part in enumerate((rows[:32], rows[32:])):
        assert request.extra_keys(index, 4) == (("prompt_embeds", hashlib.sha256(part).digest()),)
    assert request.extra_keys(2, 4) == (("prompt_embeds", hashlib.sha256(b"").digest()),)  # no row is left
    message = (
        b"\x83\x58\x20" + bytes.fromhex(ROOTS["sha256_cbor"]["default"]) + b"\x84\0\0\0\0"
        + b"\x81\x82\x6dprompt_embeds\x58\x20" + hashlib.sha256(rows[:32]).digest()
    )  # fmt: skip
    assert BlockHasher(4).extend(request, 1) == [hashlib.sha256(message).digest()]


# The pickle forms


def test_equal_names_are_one_object_in_a_requests_pickle() -> None:
    """Pickle refers back to an object that it has met; equal strings may be one object or two."""
    one, other = "ab" * 16, ("ab" * 17)[:32]
    assert one == other
    assert one is not other
    hasher = BlockHasher(8, algorithm="sha256")
    digests = {
        hasher.extend(CacheRequest("r", range(8), media=media, namespace=namespace), 1)[0]
        for media in (
            [MediaSpan(one, 0, 2), MediaSpan(one, 4, 2)],
            [MediaSpan(one, 0, 2), MediaSpan(other, 4, 2)],
        )
        for namespace in (Namespace(Adapter(one, "mm")), Namespace(Adapter("ab" * 16, "m" + one[:0] + "m")))
    }
    assert len(digests) == 1
    keys: list[ExtraKeys] = [(("mm", one, 0), ("mm", one, 4)), (("mm", one, 0), ("mm", other, 4))]
    assert hasher.block_digest(None, range(8), keys[0]) != hasher.block_digest(None, range(8), keys[1])


def test_tags_are_one_object_wherever_they_come_from() -> None:
    tags = ["mm", "".join(("m", "m"))]
    assert tags[0] is not tags[1]
    hasher = BlockHasher(4, algorithm="sha256")
    digests = {
        hasher.block_digest(None, range(4), ((tags[0], IMAGE, 0), (tag, IMAGE[::-1], 2))) for tag in tags
    }
    assert len(digests) == 1


# Encoding


def test_long_blocks_and_texts_have_long_heads() -> None:
    name, digest = "é" * 150, "d" * 24  # 300 bytes and 24
    message = (
        b"\x83" + b"\x58\x20" + bytes.fromhex(ROOTS["sha256_cbor"]["default"])
        + b"\x99\x01\x2c" + b"\x05" * 300
        + b"\x81\x83" + b"\x64lora" + b"\x79\x01\x2c" + name.encode() + b"\x78\x18" + digest.encode()
    )  # fmt: skip
    [found] = block_hash_chain([5] * 300, block_size=300, extra_keys=[(("lora", name, digest),)])
    assert found == hashlib.sha256(message).digest()


# Seeds


def chains_in_a_fresh_interpreter(seed: str | None) -> list[list[str]]:
    """The chain of tokens 1 to 8 by each algorithm."""
    program = (
        "from headstart.cache.hashing import ALGORITHMS, block_hash_chain\n"
        "for name in ALGORITHMS:\n"
        "    chain = block_hash_chain(range(1, 9), block_size=4, algorithm=name)\n"
        "    assert chain == block_hash_chain(range(1, 9), block_size=4, algorithm=name)\n"
        "    print(*[digest.hex() for digest in chain])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    if seed is not None:
        environment["PYTHONHASHSEED"] = seed
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return [line.split() for line in done.stdout.splitlines()]


def test_which_processes_compute_the_same_chains() -> None:
    # item 11, cases 1 and 19: SHA-256 the same by default, xxhash never; another one for each PYTHONHASHSEED
    seeds = (None, None, "0", "0", "42")
    chains = [
        dict(zip(ALGORITHMS, found, strict=True)) for found in map(chains_in_a_fresh_interpreter, seeds)
    ]
    for algorithm in ALGORITHMS:
        by_default = chains[0][algorithm] == chains[1][algorithm]
        assert by_default == algorithm.startswith("sha256")
        assert chains[2][algorithm] == chains[3][algorithm]
        assert len({process[algorithm][0] for process in chains[1:]}) == 3
        for process, seed in zip(chains[2:], ("0", "0", "42"), strict=True):
            chain = block_hash_chain(range(1, 9), block_size=4, algorithm=algorithm, seed=seed)
            assert process[algorithm] == [digest.hex() for digest in chain]
    default = block_hash_chain(range(1, 9), block_size=4, seed=DEFAULT_SEED)
    assert chains[0]["sha256_cbor"] == [digest.hex() for digest in default]


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
    keys = [request.extra_keys(index, 4) for index in range(4)]
    assert request.digests == block_hash_chain(tokens, block_size=4, extra_keys=keys)


def test_asking_for_fewer_digests_forgets_none() -> None:
    hasher, request = BlockHasher(4), CacheRequest("r", range(16))
    four = list(hasher.extend(request, 4))
    assert hasher.extend(request, 2) == four


@pytest.mark.parametrize("algorithm", ["md5", "", "SHA256"])
def test_an_unknown_algorithm_is_refused_by_name(algorithm: str) -> None:
    message = f"must be one of sha256, sha256_cbor, xxhash, xxhash_cbor, not {algorithm!r}"
    with pytest.raises(ConfigError, match=message):
        BlockHasher(4, algorithm=algorithm)
    with pytest.raises(ConfigError, match=message):
        block_hash_chain([1], block_size=1, algorithm=algorithm)
