"""The server's numbers under vLLM's names, labels and buckets, in Prometheus' text form.

What the engine counts is read when somebody scrapes; only what the front alone can see (when a token
reached it) is observed as it happens.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headstart.cache import MissReason, MissReport
from headstart.engine.request import FinishReason
from headstart.engine.supervisor import EngineSupervisor

# fmt: off
FIRST_TOKEN_BUCKETS = (
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)
INTER_TOKEN_BUCKETS = (
    .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)
REQUEST_BUCKETS = (
    .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)
# fmt: on
TOKEN_BUCKETS = tuple(digit * 10**power for power in range(8) for digit in (1, 2, 5))
"""vLLM's, which end where a model's context does; these are the same for all models."""

HIT_FRACTION_BUCKETS = (0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1)
PROMPT_BOUNDS = (64, 256, 1024, 4096, 16_384, 65_536)
"""Prompts of at most so many tokens are told apart in the label of the hit fraction."""

LABELS = ("model_name", "engine")

# name, help, the attribute of `EngineStats`
GAUGES = (
    ("vllm:num_requests_running", "Requests in the current step.", "num_running"),
    ("vllm:num_requests_waiting", "Requests that wait to be admitted.", "num_waiting"),
    ("vllm:kv_cache_usage_perc", "Share of the KV blocks in use; 1 is all of them.", "kv_cache_usage"),
)
COUNTERS = (
    ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_cache_queries"),
    ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_cache_hits"),
    ("vllm:num_preemptions", "Requests put back to make room for others.", "num_preemptions"),
    ("vllm:prompt_tokens", "Prompt tokens of admitted requests, cached ones included.", "prompt_tokens"),
    ("vllm:generation_tokens", "Tokens generated.", "generation_tokens"),
    (
        "headstart:evicted_blocks",
        "Cached blocks that were given up for their slots.",
        "num_evicted_blocks",
    ),
    (
        "headstart:prefix_cache_collisions",
        "Requests that met other content under a digest of theirs, which was no hit.",
        "num_collisions",
    ),
    (
        "headstart:kv_event_batches_dropped",
        "Batches of KV events that found the publisher's queue full.",
        "kv_event_batches_dropped",
    ),
)
HIT_RATE_ESTIMATE = (
    "headstart:prefix_cache_hit_rate_estimate",
    "Token hit rate at multiples of the KV capacity, over about 1,000 requests; 1x is measured.",
)


class EngineCollector(Collector):
    """`EngineStats` and `EngineInfo` as metric families, as of the scrape."""

    def __init__(self, client: EngineSupervisor, labels: tuple[str, str]) -> None:
        self._client = client
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        """Gauges, counters and the one series that says how the cache is configured."""
        stats = self._client.stats
        for name, text, attribute in GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=LABELS)
            gauge.add_metric(self._labels, getattr(stats, attribute))
            yield gauge
        for name, text, attribute in COUNTERS:
            counter = CounterMetricFamily(name, text, labels=LABELS)
            counter.add_metric(self._labels, getattr(stats, attribute))
            yield counter
        misses = CounterMetricFamily(
            "headstart:prefix_cache_miss_tokens",
            "Prompt tokens that were computed at their request's first admission, by the reason for it.",
            labels=(*LABELS, "reason"),
        )
        for reason in MissReason:
            misses.add_metric((*self._labels, reason), stats.miss_tokens.get(reason, 0))
        yield misses
        if stats.hit_rate_estimates:
            estimates = GaugeMetricFamily(*HIT_RATE_ESTIMATE, labels=[*LABELS, "capacity"])
            for capacity, rate in stats.hit_rate_estimates.items():
                estimates.add_metric([*self._labels, capacity], rate)
            yield estimates
        info = self._client.info
        config = {
            "block_size": str(info.block_size),
            "cache_dtype": info.dtype,
            "enable_prefix_caching": str(info.enable_prefix_caching),
            "num_gpu_blocks": str(info.num_blocks),
            "prefix_index": info.prefix_index,
            "eviction_policy": info.eviction_policy,
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "How the KV cache is configured.", labels=[*LABELS, *config]
        )
        family.add_metric([*self._labels, *config.values()], 1)
        yield family


class Metrics:
    """All series of one server, in a registry of its own; every series exists from the start."""

    def __init__(
        self, client: EngineSupervisor, model_name: str, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        labels = (model_name, "0")
        self.clock = clock
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(client, labels))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, LABELS, buckets=buckets, registry=self._registry).labels(*labels)

        self.first_token = histogram(
            "vllm:time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            FIRST_TOKEN_BUCKETS,
        )
        self.inter_token = histogram(
            "vllm:inter_token_latency_seconds",
            "Between one token of a request and the next.",
            INTER_TOKEN_BUCKETS,
        )
        self.request = histogram(
            "vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", REQUEST_BUCKETS
        )
        fraction = Histogram(
            "headstart:request_hit_fraction",
            "Share of a prompt's tokens that were a hit, by its length; of requests that read the cache.",
            (*LABELS, "prompt_tokens"),
            buckets=HIT_FRACTION_BUCKETS,
            registry=self._registry,
        )
        self._hit_fraction = {
            bound: fraction.labels(*labels, f"{bound}") for bound in (*PROMPT_BOUNDS, "more")
        }
        self.prompt_tokens = histogram(
            "vllm:request_prompt_tokens", "Prompt tokens of a request that ended.", TOKEN_BUCKETS
        )
        self.generation_tokens = histogram(
            "vllm:request_generation_tokens", "Tokens generated for a request that ended.", TOKEN_BUCKETS
        )
        finished = Counter(
            "vllm:request_success",
            "Requests that ended, by reason.",
            (*LABELS, "finished_reason"),
            registry=self._registry,
        )
        self.finished: dict[FinishReason, Counter] = {
            reason: finished.labels(*labels, reason) for reason in get_args(FinishReason)
        }

    def explained(self, report: MissReport) -> None:
        """A prompt's first token was sent, and this is where its tokens came from."""
        if MissReason.SKIPPED in report.tokens:
            return
        place = bisect_left(PROMPT_BOUNDS, report.num_prompt_tokens)
        bound = PROMPT_BOUNDS[place] if place < len(PROMPT_BOUNDS) else "more"
        self._hit_fraction[bound].observe(report.num_hit_tokens / report.num_prompt_tokens)

    def exposition(self) -> bytes:
        """Prometheus' text form of everything."""
        return generate_latest(self._registry)


class RequestTimer:
    """One request's observations: `tokens` whenever some arrive, `end` once."""

    def __init__(self, metrics: Metrics, arrived: float, *, num_prompt_tokens: int) -> None:
        self._metrics = metrics
        self._arrived = arrived
        self._num_prompt_tokens = num_prompt_tokens
        self._num_tokens = 0
        self._last_token: float | None = None

    def tokens(self, count: int) -> None:
        """``count`` tokens arrived just now; those of one step share the time since the last one."""
        if not count:
            return
        self._num_tokens += count
        now = self._metrics.clock()
        if self._last_token is None:
            self._metrics.first_token.observe(now - self._arrived)
        else:
            for _ in range(count):
                self._metrics.inter_token.observe((now - self._last_token) / count)
        self._last_token = now

    def end(self, reason: FinishReason) -> None:
        """The request is over."""
        self._metrics.request.observe(self._metrics.clock() - self._arrived)
        self._metrics.prompt_tokens.observe(self._num_prompt_tokens)
        self._metrics.generation_tokens.observe(self._num_tokens)
        self._metrics.finished[reason].inc()
