from __future__ import annotations

import pytest

from headstart.errors import ConfigError
from headstart.lab.metrics import (
    Engine,
    Exposition,
    MetricsError,
    Reading,
    Scraper,
    State,
    Thresholds,
    Window,
    metrics_url,
    readings,
    watch,
)
from tests.metrics_pages import page, serve


def seen(before: str, after: str, seconds: float = 10.0) -> Window:
    pages = [Exposition.parse(text, "here") for text in (before, after)]
    engine = Engine.SGLANG if "sglang:" in before else Engine.VLLM
    engine = Engine.HEADSTART if "headstart:" in before else engine
    return Window("here", engine, *pages, seconds)


def read(before: str, after: str, thresholds: Thresholds | None = None) -> Reading:
    (one,) = readings(seen(before, after), thresholds)
    return one


VLLM_TRAFFIC = {
    'vllm__prefix_cache_queries_total__engine="0"': 6000,
    'vllm__prefix_cache_queries_total__engine="1"': 4000,
    'vllm__prefix_cache_hits_total__engine="0"': 5000,
    'vllm__prefix_cache_hits_total__engine="1"': 1000,
    'vllm__request_success_total__engine="0",finished_reason="stop"': 30,
    'vllm__request_success_total__engine="1"': 20,
    "vllm__time_to_first_token_seconds_count": 50,
    "vllm__time_to_first_token_seconds_sum": 25,
    "vllm__request_queue_time_seconds_count": 50,
    "vllm__request_queue_time_seconds_sum": 5,
    "vllm__prompt_tokens_total": 5000,
}


def test_vllm_with_two_engines() -> None:
    before = page("vllm_before")
    one = read(before, page("vllm_before", **VLLM_TRAFFIC))
    assert one.engine is Engine.VLLM
    assert (one.model, one.num_engines) == ("Qwen/Qwen3-8B", 2)
    assert (one.query_tokens, one.hit_tokens) == (10_000, 6_000)
    assert one.token_hit_rate == pytest.approx(0.6)
    assert one.rate_source == "counters"
    assert one.lifetime_hit_rate == pytest.approx(366_000 / 1_810_000)
    assert one.kv_usage == pytest.approx(0.35)
    assert one.max_kv_usage == pytest.approx(0.4)
    assert (one.running, one.waiting, one.preemptions, one.requests) == (21, 1, 0, 50)
    assert one.first_token_s == pytest.approx(0.5)
    assert one.queue_time_s == pytest.approx(0.1)
    assert one.prompt_tokens == 10_000
    assert one.external_hit_tokens is None
    assert one.state is State.HEALTHY
    assert one.notes == []


@pytest.mark.parametrize(
    ("usage", "hits", "state", "words"),
    [
        (0.6, 1000, State.CAPACITY, "more memory for KV"),
        (0.6, 8000, State.ROUTING_OR_PROMPTS, "routing"),
        (0.0, 1000, State.NOTHING_SHARED, "no beginning in common"),
        (0.0, 8000, State.HEALTHY, "nothing to do"),
    ],
)
def test_rate_and_usage_are_read_together(usage: float, hits: int, state: State, words: str) -> None:
    changed = {
        'vllm__prefix_cache_queries_total__engine="0"': 10_000,
        'vllm__prefix_cache_hits_total__engine="0"': hits,
        "vllm__kv_cache_usage_perc": usage,
    }
    one = read(page("vllm_before", vllm__kv_cache_usage_perc=usage), page("vllm_before", **changed))
    assert one.state is state
    assert words in one.sentence


def test_the_thresholds_decide() -> None:
    pages = page("vllm_before"), page("vllm_before", **VLLM_TRAFFIC)
    assert read(*pages, Thresholds(usage=0.3, rate=0.5)).state is State.ROUTING_OR_PROMPTS
    assert read(*pages, Thresholds(usage=0.3, rate=0.7)).state is State.CAPACITY
    assert read(*pages, Thresholds(usage=0.8, rate=0.7)).state is State.NOTHING_SHARED
    with pytest.raises(ConfigError, match="from 0 to 1"):
        Thresholds(rate=40)


def test_one_full_engine_among_others_preemptions_and_few_requests_are_noted() -> None:
    traffic = {**VLLM_TRAFFIC, 'vllm__request_success_total__engine="1"': 1}
    traffic['vllm__request_success_total__engine="0",finished_reason="stop"'] = 2
    traffic['vllm__kv_cache_usage_perc__engine="0"'] = 0.55
    traffic['vllm__num_preemptions_total__engine="0"'] = 7
    one = read(page("vllm_before"), page("vllm_before", **traffic))
    few, full, preempted = one.notes
    assert few.startswith("Only 3 requests")
    assert full.startswith("One engine's pool is 95% full")
    assert preempted.startswith("7 requests were preempted")


def test_hits_of_a_connector_are_told_apart() -> None:
    traffic = {**VLLM_TRAFFIC, 'vllm__external_prefix_cache_hits_total__engine="1"': 2000}
    one = read(page("vllm_before"), page("vllm_before", **traffic))
    assert one.external_hit_tokens == 2000
    assert one.token_hit_rate == pytest.approx(0.6)


def test_sglang_counts_once_over_ranks_sources_and_their_total() -> None:
    traffic = {
        'sglang__prompt_tokens_total__is_streaming="true"': 8000,
        'sglang__prompt_tokens_total__is_streaming="false"': 2000,
        'sglang__cached_tokens_total__"device"': 900,
        'sglang__cached_tokens_total__"host"': 100,
        'sglang__cached_tokens_total__"total"': 1000,
        "sglang__num_requests_total": 40,
        "sglang__num_retracted_requests_total": 2,
        "sglang__queue_time_seconds_count": 40,
        "sglang__queue_time_seconds_sum": 80,
    }
    one = read(page("sglang_before"), page("sglang_before", **traffic))
    assert one.engine is Engine.SGLANG
    assert one.num_engines == 1
    assert (one.query_tokens, one.hit_tokens) == (10_000, 1_000)
    assert one.token_hit_rate == pytest.approx(0.1)
    assert one.kv_usage == pytest.approx(0.91)
    assert (one.running, one.waiting, one.preemptions) == (30, 4, 2)
    assert (one.evicted, one.evicted_unit) == (0, "tokens")
    assert one.queue_time_s == pytest.approx(2.0)
    assert one.state is State.CAPACITY


def test_data_parallel_ranks_are_engines_of_their_own() -> None:
    text = page("sglang_before").replace('tp_rank="1"', 'dp_rank="1",tp_rank="1"')
    one = read(text, text)
    assert one.num_engines == 2
    assert one.running == 60


def test_old_vllm_has_a_gauge_alone() -> None:
    one = read(page("vllm_old_before"), page("vllm_old_before", vllm__prompt_tokens_total=900))
    assert one.token_hit_rate == pytest.approx(0.62)
    assert one.rate_source == "gauge"
    assert one.kv_usage == pytest.approx(0.5)
    assert one.state is State.HEALTHY
    assert "gauge" in one.notes[0]
    off = page("vllm_old_before", vllm__gpu_prefix_cache_hit_rate=-1.62)  # -1: switched off
    assert read(off, off).token_hit_rate is None
    assert read(off, off).state is State.UNKNOWN


def test_old_names_of_counters() -> None:
    def old(**traffic: float) -> str:
        text = page("vllm_before", **traffic)
        return text.replace("vllm:prefix_cache_", "vllm:gpu_prefix_cache_").replace(
            "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"
        )

    one = read(old(), old(**VLLM_TRAFFIC))
    assert one.token_hit_rate == pytest.approx(0.6)
    assert one.kv_usage == pytest.approx(0.35)


def test_a_page_with_old_and_new_names_counts_once() -> None:
    text = page("vllm_before")
    both = text + text.replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc").replace(
        "vllm:prefix_cache_", "vllm:gpu_prefix_cache_"
    )
    one = read(both, both)
    assert one.kv_usage == pytest.approx(0.35)
    assert one.num_engines == 2


def test_the_names_of_ray_serve() -> None:
    def renamed(**traffic: float) -> str:
        return page("vllm_before", **traffic).replace("vllm:", "ray_vllm_")

    assert read(renamed(), renamed(**VLLM_TRAFFIC)).token_hit_rate == pytest.approx(0.6)


def test_models_are_told_apart() -> None:
    def two(**traffic: float) -> str:
        other = page("vllm_before").replace("Qwen/Qwen3-8B", "tiny")
        return page("vllm_before", **traffic) + other

    big, tiny = readings(seen(two(), two(**VLLM_TRAFFIC)))
    assert (big.model, big.token_hit_rate) == ("Qwen/Qwen3-8B", pytest.approx(0.6))
    assert (tiny.model, tiny.state) == ("tiny", State.IDLE)


def test_a_series_that_appears_in_the_window_began_at_nothing() -> None:
    before = "\n".join(line for line in page("vllm_before").splitlines() if "prefix_cache_hits" not in line)
    before = before.replace(
        "# HELP vllm:num_req", "# TYPE vllm:prefix_cache_hits_total counter\n# HELP vllm:num_req"
    )
    one = read(before, page("vllm_before", **VLLM_TRAFFIC))
    assert one.hit_tokens == 366_000


def test_values_that_are_no_numbers_are_not_there() -> None:
    text = page("vllm_before")
    odd = text.replace("} 0.30", "} NaN").replace("} 12.0", "} +Inf")
    one = read(odd, odd)
    assert (one.kv_usage, one.num_engines, one.running) == (pytest.approx(0.4), 1, 9)


def test_no_traffic_in_the_window() -> None:
    one = read(page("vllm_before"), page("vllm_before"))
    assert one.state is State.IDLE
    assert one.token_hit_rate is None
    assert one.lifetime_hit_rate == pytest.approx(0.2)
    assert one.sentence.startswith("no prompt was looked up within 10.0 s (21 run and 1 wait)")


def test_a_cache_that_is_off() -> None:
    def off(**traffic: float) -> str:
        return page("vllm_before", **traffic).replace('caching="True"', 'caching="False"')

    one = read(off(), off(vllm__prompt_tokens_total=500))
    assert one.state is State.OFF
    assert one.sentence.startswith("1,000 prompt tokens were computed, and none is ever looked up")


def test_a_server_that_never_looks_up_and_does_not_say_why() -> None:
    def silent(**traffic: float) -> str:
        lines = page("vllm_before", **traffic).splitlines()
        kept = [line for line in lines if "_info" not in line and "prefix_cache" not in line]
        return "\n".join(
            [
                *kept,
                'vllm:prefix_cache_queries_total{model_name="Qwen/Qwen3-8B"} 0',
                'vllm:prefix_cache_hits_total{model_name="Qwen/Qwen3-8B"} 0',
                "",
            ]
        )

    assert read(silent(), silent(vllm__prompt_tokens_total=500)).state is State.OFF
    assert read(silent(), silent()).state is State.IDLE


def test_a_prompt_looked_up_before_the_window_and_computed_in_it() -> None:
    assert read(page("vllm_before"), page("vllm_before", vllm__prompt_tokens_total=500)).state is State.IDLE


@pytest.mark.parametrize(
    "after",
    [
        page("vllm_before").replace(" 1000000.0", " 12.0"),
        "\n".join(line for line in page("vllm_before").splitlines() if 'engine="1"' not in line),
    ],
    ids=["restarted", "an engine is gone"],
)
def test_counters_that_went_back(after: str) -> None:
    with pytest.raises(MetricsError, match="went back within the window"):
        readings(seen(page("vllm_before"), after))


HEADSTART = """# TYPE headstart:prefix_cache_miss_tokens_total counter
headstart:prefix_cache_miss_tokens_total{engine="0",model_name="Qwen/Qwen3-8B",reason="cold"} COLD
headstart:prefix_cache_miss_tokens_total{engine="0",model_name="Qwen/Qwen3-8B",reason="evicted"} EVICTED
headstart:prefix_cache_miss_tokens_total{engine="0",model_name="Qwen/Qwen3-8B",reason="skipped"} 0
# TYPE headstart:evicted_blocks_total counter
headstart:evicted_blocks_total{engine="0",model_name="Qwen/Qwen3-8B"} COLD
# TYPE headstart:prefix_cache_hit_rate_estimate gauge
headstart:prefix_cache_hit_rate_estimate{capacity="1x",engine="0",model_name="Qwen/Qwen3-8B"} 0.2
headstart:prefix_cache_hit_rate_estimate{capacity="2x",engine="0",model_name="Qwen/Qwen3-8B"} 0.5
"""


@pytest.mark.parametrize("name", ["process_start_time_seconds", "vllm:prefix_cache_queries_created"])
def test_another_process_with_higher_counters(name: str) -> None:
    """Behind a load balancer, say: the second one has served more than the first."""
    started = f'# TYPE {name} gauge\n{name}{{engine="0"}} '
    before, after = page("vllm_before"), page("vllm_before", **VLLM_TRAFFIC)
    assert read(f"{before}\n{started}1.5e9\n", f"{after}\n{started}1.5e9\n").token_hit_rate == pytest.approx(
        0.6
    )
    with pytest.raises(MetricsError, match="here was another process at the end of the window"):
        read(f"{before}\n{started}1.5e9\n", f"{after}\n{started}1.6e9\n")


def test_headstart_says_why_and_what_if() -> None:
    before = page("vllm_before") + HEADSTART.replace("COLD", "100").replace("EVICTED", "50")
    after = page("vllm_before", **VLLM_TRAFFIC) + HEADSTART.replace("COLD", "200").replace("EVICTED", "350")
    one = read(before, after)
    assert one.engine is Engine.HEADSTART
    assert one.misses == {"cold": 100, "evicted": 300}
    assert one.estimates == {"1x": 0.2, "2x": 0.5}
    assert (one.evicted, one.evicted_unit) == (100, "blocks")
    assert one.notes == [
        "Most misses (75%) are evicted: cached once and evicted, so that a larger pool would have hit it."
    ]


# -- over HTTP --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("localhost:8000", "http://localhost:8000/metrics"),
        ("http://gpu:8000/", "http://gpu:8000/metrics"),
        ("http://gpu:8000/v1", "http://gpu:8000/metrics"),
        ("http://gpu:8000/metrics", "http://gpu:8000/metrics"),
        ("https://gate/llm/v1/", "https://gate/llm/metrics"),
        ("https://gate/llm/metrics/", "https://gate/llm/metrics"),
        ("[::1]:8000", "http://[::1]:8000/metrics"),
    ],
)
def test_addresses(given: str, url: str) -> None:
    assert str(metrics_url(given)) == url


@pytest.mark.parametrize(
    "given", ["ftp://gpu", "http://", "", "http://gpu:port", "gpu:99999", "file:///etc/hosts"]
)
def test_what_is_no_address(given: str) -> None:
    with pytest.raises(MetricsError, match=r"no (http )?address"):
        metrics_url(given)


def test_a_window_of_a_real_server() -> None:
    waits: list[float] = []
    pages = page("vllm_before"), page("vllm_before", **VLLM_TRAFFIC)
    with serve(*pages) as site, Scraper(metrics_url(site.url), api_key="secret") as scraper:
        window = watch(scraper, 7.0, waits.append)
    assert waits == [7.0]
    assert site.asked == [("/metrics", "Bearer secret")] * 2
    assert readings(window)[0].token_hit_rate == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("<!DOCTYPE html><html></html>", 200, "is a web page"),
        ('{"object": "list"}', 200, "answers JSON"),
        ("hello world, this is no metric", 200, "no page of Prometheus metrics"),
        ("", 200, "is empty"),
        (
            "# TYPE go_goroutines gauge\ngo_goroutines 7\n",
            200,
            "none of vLLM, SGLang or headstart: it has go_",
        ),
        ("no", 401, "wants a key (401): give it with --api-key"),
        ("no", 403, "wants a key (403)"),
        ("no", 404, "there is no page"),
        ("no", 500, "answered 500 Internal Server Error"),
    ],
)
def test_what_is_no_metrics_page(body: str, status: int, words: str) -> None:
    with (
        serve(body, status=status) as site,
        Scraper(metrics_url(site.url)) as scraper,
        pytest.raises(MetricsError) as caught,
    ):
        watch(scraper, 1.0, lambda _: None)
    assert words in str(caught.value)
    assert site.url in str(caught.value)


def test_nobody_there() -> None:
    with serve("") as site:
        url = metrics_url(site.url)
    with Scraper(url) as scraper, pytest.raises(MetricsError, match="cannot be reached"):
        scraper.read()


def test_another_engine_behind_the_same_address() -> None:
    with (
        serve(page("vllm_before"), page("sglang_before")) as site,
        Scraper(metrics_url(site.url)) as scraper,
        pytest.raises(MetricsError, match="was vLLM's page at first"),
    ):
        watch(scraper, 1.0, lambda _: None)
