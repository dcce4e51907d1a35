"""Which of several replicas a request goes to: routers that know what they sent where, and nothing else."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b
from random import Random
from typing import Protocol

from headstart.cache import CacheRequest
from headstart.cache.hashing import BlockHasher
from headstart.cache.keys import SHARED
from headstart.errors import ConfigError
from headstart.lab.replay.chains import symbols_of
from headstart.lab.replay.outcome import Setting
from headstart.lab.traces.trace import Trace, TraceRequest

MEMORY_BLOCKS = 1 << 15
"""How many blocks a prefix router remembers of each replica, at most: the last it was sent."""
WINDOW = 32
"""A replica's load is its share of the last ``WINDOW`` requests for each replica."""
IMBALANCE = 1.5
SLACK = 8
"""A replica with more than so many times the least load, and so many requests, gets none for its prefixes."""


class Routing(StrEnum):
    """How requests are spread, by the names that ``--routing`` takes."""

    RANDOM = "random"
    ROUND_ROBIN = "round-robin"
    CONSISTENT_HASH = "consistent-hash"
    PREFIX = "prefix"


class Router(Protocol):
    """Chooses a replica for each request, in order, knowing what it sent where and nothing else."""

    def choose(self, request: TraceRequest) -> int:
        """The replica's number, from 0."""
        ...


class RandomRouter:
    """Any replica; the same ones for the same ``seed``."""

    def __init__(self, replicas: int, seed: int = 0) -> None:
        self._replicas = replicas
        self._random = Random(seed)  # noqa: S311  # no secret

    def choose(self, request: TraceRequest) -> int:  # noqa: ARG002  # as the protocol has it
        """See `Router`."""
        return self._random.randrange(self._replicas)


class RoundRobinRouter:
    """One after the other."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._next = 0

    def choose(self, request: TraceRequest) -> int:  # noqa: ARG002  # as the protocol has it
        """See `Router`."""
        chosen, self._next = self._next, (self._next + 1) % self._replicas
        return chosen


class ConsistentHashRouter:
    """Equal keys to equal replicas: the session, else the user or the namespace, else the first block.

    The user is whom the request's body names, as ``prompt_cache_key`` or ``user``.

    By the highest hash of key and replica (rendezvous hashing, Thaler and Ravishankar 1996): of the keys,
    one more replica moves its own share and no others.
    """

    def __init__(self, replicas: int, block_symbols: int) -> None:
        self._replicas = replicas
        self._block = block_symbols * 4  # bytes of int32

    def choose(self, request: TraceRequest) -> int:
        """See `Router`."""
        key = self._key(request)
        return max(range(self._replicas), key=lambda replica: _hash(key, replica))

    def _key(self, request: TraceRequest) -> bytes:
        body = request.body or {}
        user = body.get("prompt_cache_key") or body.get("user")
        if request.session is not None:
            return repr(("session", request.session)).encode()
        if user:
            return repr(("user", user)).encode()
        if request.namespace != SHARED:
            return request.namespace.identity
        return request.symbols[: self._block]


def _hash(key: bytes, replica: int) -> bytes:
    return blake2b(key, digest_size=8, salt=replica.to_bytes(8, "little")).digest()


class PrefixRouter:
    """To where most of the prompt was sent lately; among equals, to where the load is least.

    Of each replica the last ``memory_blocks`` blocks are remembered that it was sent.  A replica with more
    than `IMBALANCE` times the least load and `SLACK` requests is passed over, so that one system prompt,
    which all requests share, does not bring all of them to one replica.
    """

    def __init__(self, replicas: int, block_symbols: int, memory_blocks: int = MEMORY_BLOCKS) -> None:
        self._size = block_symbols
        self._memory_blocks = memory_blocks
        self._hasher = BlockHasher(block_symbols, algorithm="xxhash_cbor", seed="")
        self._sent: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in range(replicas)]
        self._latest: deque[int] = deque(maxlen=WINDOW * replicas)
        self._loads = [0] * replicas

    def choose(self, request: TraceRequest) -> int:
        """See `Router`."""
        asked = CacheRequest("", request.symbols, namespace=request.namespace)
        digests = self._hasher.extend(asked, asked.num_tokens // self._size)
        most = IMBALANCE * min(self._loads) + SLACK
        chosen = min(
            (replica for replica, load in enumerate(self._loads) if load <= most),
            key=lambda replica: (-self._match(replica, digests), self._loads[replica]),
        )
        self._remember(chosen, digests)
        return chosen

    def _match(self, replica: int, digests: Sequence[bytes]) -> int:
        sent = self._sent[replica]
        return next((place for place, digest in enumerate(digests) if digest not in sent), len(digests))

    def _remember(self, replica: int, digests: Sequence[bytes]) -> None:
        sent = self._sent[replica]
        for digest in reversed(digests):  # so that the ends of prompts are forgotten before the beginnings
            sent[digest] = None
            sent.move_to_end(digest)
        while len(sent) > self._memory_blocks:
            sent.popitem(last=False)
        if len(self._latest) == self._latest.maxlen:
            self._loads[self._latest[0]] -= 1
        self._latest.append(replica)
        self._loads[replica] += 1


def make_router(trace: Trace, setting: Setting, *, seed: int = 0) -> Router:
    """The setting's router.  Raises ``ConfigError`` for one that there is not."""
    if setting.replicas < 1:
        raise ConfigError(f"replicas must be at least 1, not {setting.replicas}")
    block_symbols = symbols_of(setting.block_size, trace)
    match setting.routing:
        case Routing.RANDOM:
            return RandomRouter(setting.replicas, seed)
        case Routing.ROUND_ROBIN:
            return RoundRobinRouter(setting.replicas)
        case Routing.CONSISTENT_HASH:
            return ConsistentHashRouter(setting.replicas, block_symbols)
        case Routing.PREFIX:
            return PrefixRouter(setting.replicas, block_symbols)
    raise ConfigError(f"routing must be one of {', '.join(Routing)}, not {setting.routing!r}")
