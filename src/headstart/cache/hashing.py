"""The block-hash chain: ``digest(i) = H(digest(i-1), tokens of block i, extra keys)``.

The algorithms have the names of vLLM 0.32's ``--prefix-caching-hash-algo`` and are its bytes: a hash over
a serial form of ``(parent, tokens, extra)``.  ``…_cbor`` is canonical CBOR (RFC 8949 §4.2.1), which any
language can write; without it, CPython's pickle, protocol 5.  The first parent is the hash of a seed
string.

The seed of SHA-256 is public on purpose: it needs no secret to be collision-free, equal chains in two
processes are what lets their KV events be read together, and isolation between tenants is the salt's job.
``xxhash`` is no cryptographic hash: whoever knows the seed can make prompts collide, so each process draws
one of its own unless one is given.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NewType, Protocol

import xxhash

from headstart.cache import cbor, pickles
from headstart.cache.keys import CacheRequest, ExtraKeys
from headstart.cache.tokens import TOKEN_BYTES
from headstart.config import is_cryptographic
from headstart.errors import ConfigError

BlockDigest = NewType("BlockDigest", bytes)

DEFAULT_SEED = "vllm-none-hash"
"""vLLM 0.32's seed of the cryptographic algorithms where ``PYTHONHASHSEED`` is not set."""

_AT_ONCE = 512
"""Blocks that are encoded together: what is made on the way should stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A hash, the length of its digests in bytes, and the serial form that it is taken of."""

    hash: Callable[[bytes], Hash]
    size: int
    is_cbor: bool


class Hash(Protocol):
    """What hashlib and xxhash make of some bytes."""

    def digest(self) -> bytes:
        """The hash of them."""
        ...


ALGORITHMS = {
    "sha256": Algorithm(hashlib.sha256, 32, is_cbor=False),
    "sha256_cbor": Algorithm(hashlib.sha256, 32, is_cbor=True),
    "xxhash": Algorithm(xxhash.xxh3_128, 16, is_cbor=False),
    "xxhash_cbor": Algorithm(xxhash.xxh3_128, 16, is_cbor=True),
}


class BlockHasher:
    """Digests of full blocks of ``block_size`` tokens.

    ``seed`` overrides ``PYTHONHASHSEED``, which overrides the algorithm's own.
    Raises ``ConfigError`` for an unknown algorithm.
    """

    def __init__(self, block_size: int, *, algorithm: str = "sha256_cbor", seed: str | None = None) -> None:
        chosen = ALGORITHMS.get(algorithm)
        if chosen is None:
            raise ConfigError(f"hash algorithm must be one of {', '.join(ALGORITHMS)}, not {algorithm!r}")
        if seed is None:
            seed = os.environ.get("PYTHONHASHSEED") or _default_seed(algorithm)
        self._block_size = block_size
        self._is_cbor = chosen.is_cbor
        self._hash = chosen.hash
        root = cbor.text(seed) if chosen.is_cbor else pickle.dumps(seed, protocol=5)
        self._root = self._hash(root).digest()
        self._before_parent = cbor.head(4, 3) + cbor.head(2, chosen.size)
        self._heads = pickles.Heads(chosen.size)

    def block_digest(self, parent: bytes | None, tokens: Iterable[int], extra: ExtraKeys) -> BlockDigest:
        """The digest of one full block after ``parent``; None is the chain's beginning.

        The pickle forms depend on which of the extra keys' strings are the same object, as vLLM's do.
        """
        block = tuple(tokens)
        before = self._root if parent is None else parent
        if not self._is_cbor:
            return BlockDigest(self._hash(_pickled(before, block, extra)).digest())
        array = cbor.head(4, len(block)) + b"".join(map(cbor.integer, block))
        return BlockDigest(self._hash(self._before_parent + before + array + cbor.keys(extra)).digest())

    def extend(self, request: CacheRequest, num_blocks: int) -> list[bytes]:
        """The request's digests, computed as far as ``num_blocks`` and kept on it for the next time."""
        digests = request.digests
        for start in range(len(digests), num_blocks, _AT_ONCE):
            stop = min(start + _AT_ONCE, num_blocks)
            run = request.run(start * self._block_size, stop * self._block_size)
            extend = self._extend_cbor if self._is_cbor else self._extend_pickle
            extend(digests, run, request)
        return digests

    def _extend_cbor(self, digests: list[bytes], run: bytes, request: CacheRequest) -> None:
        """Add the digests of the blocks in ``run``, which follow those that are there."""
        hashed, join = self._hash, b"".join  # bound once: this loop runs for every block that is computed
        before_parent, size = self._before_parent, self._block_size
        parent = digests[-1] if digests else self._root
        array, keys, encoded = cbor.head(4, size), None, cbor.NULL
        blocks = cbor.blocks_of(run, size)
        extra = request.all_extra_keys(len(digests), len(digests) + len(blocks), size)
        for block, its_keys in zip(blocks, extra, strict=True):
            if its_keys is not keys:  # many blocks have the same
                keys, encoded = its_keys, cbor.keys(its_keys)
            parent = hashed(join((before_parent, parent, array, block, encoded))).digest()
            digests.append(parent)

    def _extend_pickle(self, digests: list[bytes], run: bytes, request: CacheRequest) -> None:
        """As `_extend_cbor`, for the pickle forms."""
        hashed, join, heads = self._hash, b"".join, self._heads
        before_tokens, behind = pickles.BEFORE_TOKENS, pickles.BEHIND
        parent = digests[-1] if digests else self._root
        size, first = self._block_size, len(digests)
        extra = request.all_extra_keys(first, first + len(run) // (size * TOKEN_BYTES), size)
        at_once = pickles.LEAST_BLOCK <= size <= pickles.MOST_BLOCK
        blocks: Iterable[bytes] = pickles.blocks_of(run, size) if at_once else repeat(b"")
        for block, keys in zip(blocks, extra, strict=False):
            if at_once and keys is None:
                parent = hashed(join((heads[len(block)], parent, before_tokens, block, behind))).digest()
            else:
                at = len(digests)
                tokens = tuple(request.token_ids(at * size, (at + 1) * size))
                parent = hashed(_pickled(parent, tokens, _each_once(keys))).digest()
            digests.append(parent)


def block_hash_chain(
    tokens: Iterable[int],
    *,
    block_size: int,
    algorithm: str = "sha256_cbor",
    extra_keys: Sequence[ExtraKeys] | None = None,
    seed: str | None = None,
) -> list[bytes]:
    """Digests of every full block of ``tokens``; a partial last block has none.

    ``extra_keys`` gives each block's typed extra parts (or None for it).
    """
    hasher = BlockHasher(block_size, algorithm=algorithm, seed=seed)
    flat = list(tokens)
    chain: list[bytes] = []
    for index in range(len(flat) // block_size):
        block = flat[index * block_size : (index + 1) * block_size]
        extra = extra_keys[index] if extra_keys is not None else None
        chain.append(hasher.block_digest(chain[-1] if chain else None, block, extra))
    return chain


def _default_seed(algorithm: str) -> str:
    return DEFAULT_SEED if is_cryptographic(algorithm) else _process_seed()


@functools.cache
def _process_seed() -> str:
    """Nobody else's: one for all hashers of a process, whose digests must agree."""
    return os.urandom(32).hex()


_TAGS = {tag: tag for tag in ("lora", "mm", "cache_salt", "prompt_embeds")}


def _pickled(parent: bytes, tokens: tuple[int, ...], extra: ExtraKeys) -> bytes:
    """Pickle writes an object that it has met before as a reference, so tags must be one object each."""
    if extra is not None:
        extra = tuple((_TAGS.get(str(part[0]), part[0]), *part[1:]) for part in extra)
    return pickle.dumps((parent, tokens, extra), protocol=5)


def _each_once(extra: ExtraKeys) -> ExtraKeys:
    """The same keys with equal strings as one object, apart from the tags: equal content, equal bytes."""
    if extra is None:
        return None
    known: dict[str, str] = {}
    return tuple(
        (
            part[0],
            *(known.setdefault(item, _fresh(item)) if isinstance(item, str) else item for item in part[1:]),
        )
        for part in extra
    )


def _fresh(text: str) -> str:
    """An equal string that is another object, as far as strings of one letter can be."""
    return text.encode().decode()
