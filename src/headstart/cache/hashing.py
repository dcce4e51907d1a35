"""The block-hash chain: ``digest(i) = H(digest(i-1), tokens of block i, extra keys)``.

``sha256_cbor`` is byte for byte what vLLM 0.32 computes with ``--prefix-caching-hash-algo
sha256_cbor``: SHA-256 over the canonical CBOR (RFC 8949 §4.2.1) of the array ``[parent, tokens,
extra]``.  The first parent is the hash of a seed string.  The seed is public on purpose: SHA-256 needs
no secret to be collision-free, equal chains in two processes are what lets their KV events be read
together, and isolation between tenants is the salt's job.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Sequence
from typing import NewType

from headstart.cache.keys import CacheRequest, ExtraKeys
from headstart.errors import ConfigError

BlockDigest = NewType("BlockDigest", bytes)

DEFAULT_SEED = "vllm-none-hash"
"""vLLM 0.32's seed where ``PYTHONHASHSEED`` is not set."""

_ARRAY3, _BYTES32, _NULL = b"\x83", b"\x58\x20", b"\xf6"


def _head(major: int, value: int) -> bytes:
    """A CBOR head: three bits of major type, then the value in its shortest form."""
    if value < 24:
        return bytes((major << 5 | value,))
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << 8 * size:
            return bytes((major << 5 | code,)) + value.to_bytes(size, "big")
    raise ValueError(f"{value} needs more than 64 bits")


@functools.lru_cache(maxsize=1 << 17)  # a vocabulary's worth: encoding is most of a digest's cost
def _integer(value: int) -> bytes:
    return _head(0, value) if value >= 0 else _head(1, -1 - value)


def _text(value: str) -> bytes:
    data = value.encode()
    return _head(3, len(data)) + data


def _extra(keys: ExtraKeys) -> bytes:
    if keys is None:
        return _NULL
    parts = (_head(4, len(key)) + b"".join(map(_text, key)) for key in keys)
    return _head(4, len(keys)) + b"".join(parts)


class BlockHasher:
    """Digests of full blocks of ``block_size`` tokens.

    ``seed`` overrides ``PYTHONHASHSEED``, which overrides vLLM's default seed.
    Raises ``ConfigError`` for an unknown algorithm.
    """

    def __init__(self, block_size: int, *, algorithm: str = "sha256_cbor", seed: str | None = None) -> None:
        if algorithm != "sha256_cbor":
            raise ConfigError(f"hash algorithm must be sha256_cbor, not {algorithm!r}")
        if seed is None:
            seed = os.environ.get("PYTHONHASHSEED") or DEFAULT_SEED
        self._block_size = block_size
        self._root = hashlib.sha256(_text(seed)).digest()
        self._array_head = _head(4, block_size)

    def block_digest(self, parent: bytes | None, tokens: Iterable[int], extra: ExtraKeys) -> BlockDigest:
        """The digest (32 bytes) of one full block after ``parent``; None is the chain's beginning."""
        return self._digest(parent, map(_integer, tokens), extra)

    def _digest(self, parent: bytes | None, encoded: Iterable[bytes], extra: ExtraKeys) -> BlockDigest:
        before = self._root if parent is None else parent
        message = b"".join((_ARRAY3, _BYTES32, before, self._array_head, *encoded, _extra(extra)))
        return BlockDigest(hashlib.sha256(message).digest())

    def extend(self, request: CacheRequest, num_blocks: int) -> list[bytes]:
        """The request's digests, computed as far as ``num_blocks`` and kept on it for the next time."""
        digests, size = request.digests, self._block_size
        known = len(digests)
        if num_blocks <= known:
            return digests
        encoded = list(map(_integer, request.token_ids(known * size, num_blocks * size)))
        parent = digests[-1] if digests else None
        for index in range(known, num_blocks):
            start = (index - known) * size
            extra = request.namespace.extra_keys(index)
            parent = self._digest(parent, encoded[start : start + size], extra)
            digests.append(parent)
        return digests


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
