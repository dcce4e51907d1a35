"""What crosses the wire between the HTTP process and the engine: msgspec structs, msgpack bytes.

Prompts travel as the bytes of little-endian int32, which is also how the cache keeps them.
"""

from __future__ import annotations

import msgspec

from headstart.cache import MissReason, MissReport
from headstart.engine.request import PLAIN_TERMS, CacheTerms, RequestOutput, SamplingParams


class Submit(msgspec.Struct, frozen=True, tag=True, weakref=True):
    """A new request, all its choices (`choice_ids`) at once.

    Its stop strings are the front's affair: the engine has no text.
    """

    request_id: str
    prompt: bytes
    params: SamplingParams
    terms: CacheTerms = PLAIN_TERMS
    priority: int = 0


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Nobody wants these any more; unknown or finished ids are ignored."""

    request_ids: tuple[str, ...]


class ResetPrefixCache(msgspec.Struct, frozen=True, tag=True):
    """Forget everything cached; refused while blocks are in use."""

    call_id: int


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Stop after the current step."""


ToEngine = Submit | Abort | ResetPrefixCache | Shutdown


class EngineInfo(msgspec.Struct, frozen=True, tag=True):
    """The engine is ready; what a banner and the routes need to know of it."""

    model_name: str
    model_type: str
    dtype: str
    device: str
    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int
    kv_bytes_per_token: int
    kv_pool_bytes: int
    prefix_index: str
    eviction_policy: str
    enable_prefix_caching: bool
    max_num_batched_tokens: int
    max_num_seqs: int
    weights_bytes: int
    explain_misses: bool = True
    scheduling_policy: str = "fcfs"
    max_queued_requests: int | None = None
    decision_log: str | None = None  # the file's absolute name
    kv_events_endpoint: str | None = None
    kv_events_replay_endpoint: str | None = None

    @property
    def kv_capacity_tokens(self) -> int:
        """Token slots in the pool."""
        return self.num_blocks * self.block_size


class EngineStats(msgspec.Struct, frozen=True):
    """Gauges as of now, and counters since the engine started.  Token counts unless said.

    ``hit_rate_estimates`` are those of `KVCacheManager`: by multiples of the capacity, empty without any.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    miss_tokens: dict[MissReason, int] = {}
    num_evicted_blocks: int = 0
    num_collisions: int = 0
    kv_event_batches_dropped: int = 0
    hit_rate_estimates: dict[str, float] = {}

    def after(self, earlier: EngineStats) -> EngineStats:
        """These gauges, with the counters of an engine that went before added to these."""
        sums = {name: getattr(self, name) + getattr(earlier, name) for name in _COUNTERS}
        misses = dict(earlier.miss_tokens)
        for reason, count in self.miss_tokens.items():
            misses[reason] = misses.get(reason, 0) + count
        return msgspec.structs.replace(self, **sums, miss_tokens=misses)

    def at_rest(self) -> EngineStats:
        """These counters, with the gauges of an engine that does nothing."""
        counters = {name: getattr(self, name) for name in _COUNTERS}
        return EngineStats(**counters, miss_tokens=self.miss_tokens)


_COUNTERS = (
    *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens", "generation_tokens"),
    *("num_evicted_blocks", "num_collisions", "kv_event_batches_dropped"),
)


class StepOutputs(msgspec.Struct, frozen=True, tag=True):
    """Everything one step brought."""

    outputs: tuple[RequestOutput, ...]
    stats: EngineStats


class Explained(msgspec.Struct, frozen=True, tag=True):
    """Why prompts missed whose first tokens have been sent."""

    reports: tuple[MissReport, ...]
    stats: EngineStats


class Planned(msgspec.Struct, frozen=True, tag=True):
    """A step begins that lets requests in or puts them back: gauges must not wait until it has ended."""

    stats: EngineStats


class ResetDone(msgspec.Struct, frozen=True, tag=True):
    """Answer to `ResetPrefixCache`."""

    call_id: int
    success: bool


class StartFailed(msgspec.Struct, frozen=True, tag=True):
    """The engine could not start; ``error`` is the sentence for the user, ``kind`` its class's name."""

    error: str
    kind: str = "EngineError"


FromEngine = EngineInfo | Planned | StepOutputs | Explained | ResetDone | StartFailed
