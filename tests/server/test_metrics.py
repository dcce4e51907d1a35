"""The exposition: vLLM's names, labels and buckets, and numbers that add up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from headstart.cache import MissReason, MissReport
from headstart.engine.messages import EngineStats
from headstart.server.metrics import Metrics, RequestTimer

LABELS = {"model_name": "fake/model", "engine": "0"}

COUNTERS = [
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_preemptions",
    "prompt_tokens",
    "generation_tokens",
]
GAUGES = ["kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"]
TOKENS = (
    "1.0 2.0 5.0 10.0 20.0 50.0 100.0 200.0 500.0 1000.0 2000.0 5000.0 10000.0 20000.0 50000.0 100000.0 "
    "200000.0 500000.0 1e+06 2e+06 5e+06 1e+07 2e+07 5e+07 +Inf"
)
BUCKETS = {
    "time_to_first_token_seconds": "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 "
    "10.0 20.0 40.0 80.0 160.0 640.0 2560.0 +Inf",
    "inter_token_latency_seconds": "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 2.5 5.0 7.5 10.0 "
    "20.0 40.0 80.0 +Inf",
    "e2e_request_latency_seconds": "0.3 0.5 0.8 1.0 1.5 2.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0 120.0 "
    "240.0 480.0 960.0 1920.0 7680.0 +Inf",
    "request_prompt_tokens": TOKENS,
    "request_generation_tokens": TOKENS,
}


def samples_of(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by name and its labels besides model and engine, which must be there."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert {key: labels.pop(key) for key in LABELS} == LABELS
            found[sample.name, frozenset(labels.items())] = sample.value
    return found


def scrape(client: TestClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return samples_of(response.text)


def value(samples: Any, name: str, **labels: str) -> float:
    found: float = samples[f"vllm:{name}", frozenset(labels.items())]
    return found


def test_every_series_is_there_from_the_start(client: TestClient) -> None:
    samples = scrape(client)
    for name in GAUGES:
        assert value(samples, name) == 0
    for name in COUNTERS:
        assert value(samples, f"{name}_total") == 0
    for reason in ("stop", "length", "abort", "error"):
        assert value(samples, "request_success_total", finished_reason=reason) == 0
    for name, buckets in BUCKETS.items():
        assert value(samples, f"{name}_count") == value(samples, f"{name}_sum") == 0
        for bound in buckets.split():
            assert value(samples, f"{name}_bucket", le=bound) == 0
        assert sum(key[0] == f"vllm:{name}_bucket" for key in samples) == len(buckets.split())
    config = [dict(labels) for name, labels in samples if name == "vllm:cache_config_info"]
    assert config == [
        {
            "block_size": "16",
            "cache_dtype": "float32",
            "enable_prefix_caching": "True",
            "num_gpu_blocks": "64",
            "prefix_index": "radix",
            "eviction_policy": "lru",
        }
    ]


def test_the_engines_numbers_are_read_at_the_scrape(client: TestClient, engine: Any) -> None:
    engine.stats = EngineStats(1, 2, 0.25, 100, 40, 3, 90, 7)
    samples = scrape(client)
    names = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]
    names += [f"{name}_total" for name in COUNTERS]
    assert [value(samples, name) for name in names] == [1, 2, 0.25, 100, 40, 3, 90, 7]


def test_estimates_are_there_if_the_engine_makes_them(client: TestClient, engine: Any) -> None:
    name = "headstart:prefix_cache_hit_rate_estimate"
    assert name not in {each for each, _ in scrape(client)}
    engine.stats = EngineStats(hit_rate_estimates={"0.5x": 0.25, "1x": 0.5})
    samples = scrape(client)
    found = {dict(labels)["capacity"]: rate for (each, labels), rate in samples.items() if each == name}
    assert found == {"0.5x": 0.25, "1x": 0.5}


def test_requests_are_counted_by_how_they_ended(client: TestClient, engine: Any) -> None:
    def end(**fields: Any) -> None:
        client.post("/v1/completions", json={"prompt": "hi", **fields})

    end(max_tokens=50)  # the end token
    end(max_tokens=2, stream=True)
    end(stop=",")
    end(prompt=["a", "b"], max_tokens=1)
    end(temperature=-1)  # refused: never a request of the engine's
    end(n=3, stop=",", max_tokens=2)  # each choice counts
    engine.fail_after = 1
    end()
    samples = scrape(client)
    counts = [
        value(samples, "request_success_total", finished_reason=reason)
        for reason in ("stop", "length", "abort", "error")
    ]
    assert counts == [2, 6, 0, 1]
    assert value(samples, "e2e_request_latency_seconds_count") == 9
    assert value(samples, "time_to_first_token_seconds_count") == 9
    tokens = [len("fine, thanks") + 1, 2, len("fine,"), 1, 1, 2, 2, 2, 1]
    assert value(samples, "inter_token_latency_seconds_count") == sum(tokens) - len(tokens)
    assert value(samples, "request_generation_tokens_count") == 9
    assert value(samples, "request_generation_tokens_sum") == sum(tokens)
    assert value(samples, "request_prompt_tokens_count") == 9
    assert value(samples, "request_prompt_tokens_sum") == 2 * 7 + 1 * 2  # each choice is a request


def test_times_are_measured_from_arrival_and_from_token_to_token(engine: Any) -> None:
    now = 100.0
    metrics = Metrics(engine, LABELS["model_name"], clock=lambda: now)
    timer = RequestTimer(metrics, arrived=100.0, num_prompt_tokens=7)
    for now, count in ((103.0, 1), (103.0, 0), (104.0, 1), (106.0, 2)):  # noqa: B007 - the clock reads it
        timer.tokens(count)
    now = 107.0
    timer.end("length")
    samples = samples_of(metrics.exposition().decode())
    assert value(samples, "time_to_first_token_seconds_sum") == pytest.approx(3)
    assert value(samples, "inter_token_latency_seconds_sum") == pytest.approx(3)
    assert value(samples, "inter_token_latency_seconds_count") == 3
    assert value(samples, "e2e_request_latency_seconds_sum") == pytest.approx(7)


def test_the_readme_names_every_series(client: TestClient) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    told = {name.removesuffix("_total") for name in re.findall(r"`(vllm:\w+)`", readme)}
    names = {family.name for family in text_string_to_metric_families(client.get("/metrics").text)}
    assert told == {name for name in names if name.startswith("vllm:") and not name.endswith("_created")}


def test_two_servers_in_one_process_keep_their_numbers_apart(engine: Any) -> None:
    first, second = Metrics(engine, "a"), Metrics(engine, "b")
    RequestTimer(first, first.clock(), num_prompt_tokens=1).end("stop")
    assert (
        b'vllm:request_success_total{engine="0",finished_reason="stop",model_name="a"} 1.0'
        in first.exposition()
    )
    assert b'model_name="b"} 1.0' not in second.exposition().split(b"request_success_total{")[1]


def misses(samples: Any, reason: str) -> float:
    found: float = samples["headstart:prefix_cache_miss_tokens_total", frozenset({("reason", reason)})]
    return found


def test_misses_are_counted_by_reason(client: TestClient, engine: Any) -> None:
    samples = scrape(client)
    assert [misses(samples, reason) for reason in MissReason] == [0] * len(MissReason)
    engine.stats = EngineStats(miss_tokens={MissReason.ISOLATED: 5, MissReason.COLD: 2})
    samples = scrape(client)
    assert (misses(samples, "isolated"), misses(samples, "cold"), misses(samples, "evicted")) == (5, 2, 0)


def test_the_share_of_hits_is_told_by_the_prompts_length(client: TestClient, engine: Any) -> None:
    def fraction(kind: str, prompt_tokens: str, **labels: str) -> float:
        name = f"headstart:request_hit_fraction_{kind}"
        found: float = scrape(client)[name, frozenset({"prompt_tokens": prompt_tokens, **labels}.items())]
        return found

    for bound in ("64", "256", "1024", "4096", "16384", "65536", "more"):
        assert fraction("count", bound) == 0
    rest = {MissReason.LAST_TOKEN: 1}
    engine.explain(MissReport("a", 64, 16, rest))
    engine.explain(MissReport("b", 65, 0, rest))
    engine.explain(MissReport("c", 100_000, 99_999, rest))
    engine.explain(MissReport("d", 64, 0, {MissReason.SKIPPED: 64}))
    assert [fraction("count", bound) for bound in ("64", "256", "65536", "more")] == [1, 1, 0, 1]
    assert fraction("sum", "64") == 0.25
    assert fraction("bucket", "256", le="0.0") == 1
    assert fraction("bucket", "more", le="0.99") == 0


def test_evictions_and_collisions_are_counted(client: TestClient, engine: Any) -> None:
    engine.stats = EngineStats(num_evicted_blocks=3, num_collisions=1)
    samples = scrape(client)
    assert samples["headstart:evicted_blocks_total", frozenset()] == 3
    assert samples["headstart:prefix_cache_collisions_total", frozenset()] == 1
