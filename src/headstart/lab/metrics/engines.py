"""Whose page it is, and what each engine calls what we want to know."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headstart.lab.metrics.exposition import Exposition, MetricsError


class Engine(StrEnum):
    """The engines whose metrics are known."""

    HEADSTART = "headstart"
    VLLM = "vLLM"
    SGLANG = "SGLang"


Names = tuple[str, ...]
"""Spellings of one thing, the newest first; the first that a page has counts, without ``_total``."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """An engine's names.  Counters of tokens, unless they say otherwise; gauges; histograms of seconds.

    ``rate_gauge`` is the engine's own idea of a hit rate, for versions without counters.
    """

    queries: Names
    hits: Names
    prompt_tokens: Names
    external_hits: Names
    requests: Names
    preemptions: Names
    evicted: Names
    usage: Names
    running: Names
    waiting: Names
    rate_gauge: Names
    queue_time: Names
    first_token: Names


VLLM = Vocabulary(
    queries=("vllm_prefix_cache_queries", "vllm_gpu_prefix_cache_queries"),
    hits=("vllm_prefix_cache_hits", "vllm_gpu_prefix_cache_hits"),
    prompt_tokens=("vllm_prompt_tokens",),
    external_hits=("vllm_external_prefix_cache_hits",),
    requests=("vllm_request_success",),
    preemptions=("vllm_num_preemptions",),
    evicted=("headstart_evicted_blocks",),
    usage=("vllm_kv_cache_usage_perc", "vllm_gpu_cache_usage_perc"),
    running=("vllm_num_requests_running",),
    waiting=("vllm_num_requests_waiting",),
    rate_gauge=("vllm_gpu_prefix_cache_hit_rate",),
    queue_time=("vllm_request_queue_time_seconds",),
    first_token=("vllm_time_to_first_token_seconds",),
)
SGLANG = Vocabulary(
    queries=("sglang_prompt_tokens",),
    hits=("sglang_cached_tokens",),
    prompt_tokens=("sglang_prompt_tokens",),
    external_hits=(),
    requests=("sglang_num_requests",),
    preemptions=("sglang_num_retracted_requests",),
    evicted=("sglang_evicted_tokens",),
    usage=("sglang_token_usage",),
    running=("sglang_num_running_reqs",),
    waiting=("sglang_num_queue_reqs",),
    rate_gauge=("sglang_cache_hit_rate",),
    queue_time=("sglang_queue_time_seconds",),
    first_token=("sglang_time_to_first_token_seconds",),
)
VOCABULARY = {Engine.HEADSTART: VLLM, Engine.VLLM: VLLM, Engine.SGLANG: SGLANG}
EVICTED_UNIT = {Engine.HEADSTART: "blocks", Engine.VLLM: "blocks", Engine.SGLANG: "tokens"}

MISS_TOKENS = "headstart_prefix_cache_miss_tokens"
"""With the label ``reason``."""
ESTIMATE = "headstart_prefix_cache_hit_rate_estimate"
"""With the label ``capacity``."""
CONFIG = ("vllm_cache_config_info", "sglang_cache_config_info")


def engine_of(page: Exposition, source: str) -> Engine:
    """Whose page it is.  Raises ``MetricsError`` for that of something else."""
    names = page.names()
    for prefix, engine in (
        ("headstart_", Engine.HEADSTART),
        ("vllm_", Engine.VLLM),
        ("sglang_", Engine.SGLANG),
    ):
        if any(name.startswith(prefix) for name in names):
            return engine
    some = ", ".join(sorted(names)[:3])
    raise MetricsError(
        f"{source} has metrics, but none of vLLM, SGLang or headstart: it has {some} and the like"
    )
