from __future__ import annotations

import dataclasses
import re
from typing import Any, get_args

import pytest

from headstart.config import (
    CacheConfig,
    EngineConfig,
    HashAlgorithm,
    KVConfig,
    KVEventsConfig,
    ModelConfig,
    SchedulerConfig,
    is_cryptographic,
)
from headstart.errors import ConfigError

POSITIVE = [
    (CacheConfig, "num_blocks"),
    (CacheConfig, "block_size"),
    (CacheConfig, "cost_depth_tokens"),
    (KVConfig, "kv_cache_memory_bytes"),
    (KVConfig, "num_blocks"),
    (KVConfig, "block_size"),
    (SchedulerConfig, "max_num_batched_tokens"),
    (SchedulerConfig, "max_num_seqs"),
    (SchedulerConfig, "max_model_len"),
    (SchedulerConfig, "max_queued_requests"),
]
CHOICES = [
    (CacheConfig, "index", "radix, hash"),
    (CacheConfig, "policy", "lru, fifo, lfu, lrfu, slru, ttl, cost"),
    (CacheConfig, "free_order", "reverse, unhashed_first"),
    (CacheConfig, "hash_algorithm", "sha256, sha256_cbor, xxhash, xxhash_cbor"),
    (KVConfig, "prefix_index", "radix, hash"),
    (KVConfig, "eviction_policy", "lru, fifo, lfu, lrfu, slru, ttl, cost"),
    (KVConfig, "prefix_caching_hash_algo", "sha256, sha256_cbor, xxhash, xxhash_cbor"),
    (SchedulerConfig, "scheduling_policy", "fcfs, priority"),
    (ModelConfig, "dtype", "auto, bfloat16, float16, float32"),
]


def make(part: type[Any], **options: Any) -> Any:
    return part(**({"num_blocks": 8} if part is CacheConfig else {}) | options)


# The checks of each part


@pytest.mark.parametrize(("part", "name"), POSITIVE)
@pytest.mark.parametrize("value", [0, -1, 2.0, "16", [1], True])
def test_a_count_is_a_whole_number_of_at_least_one(part: type[Any], name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        make(part, **{name: value})
    said = str(caught.value).replace(" or auto", "")
    assert said == f"{name} must be a whole number of at least 1, not {value!r}"


def test_the_budget_of_a_step_may_be_left_to_the_scheduler() -> None:
    assert SchedulerConfig(max_num_batched_tokens="auto").max_num_batched_tokens == "auto"
    with pytest.raises(ConfigError, match="at least 1 or auto, not 'much'"):
        make(SchedulerConfig, max_num_batched_tokens="much")


@pytest.mark.parametrize(("part", "name"), POSITIVE)
def test_none_is_for_what_can_be_left_out(part: type[Any], name: str) -> None:
    left_out = next(item.default for item in dataclasses.fields(part) if item.name == name) is None
    if left_out:
        assert getattr(make(part, **{name: None}), name) is None
    else:
        with pytest.raises(ConfigError, match=f"{name} must be a whole number of at least 1, not None"):
            make(part, **{name: None})


@pytest.mark.parametrize(("part", "name"), POSITIVE)
def test_one_is_enough(part: type[Any], name: str) -> None:
    least = 2 if name == "max_model_len" else 1  # a prompt of one token, and one to generate
    assert getattr(make(part, **{name: least}), name) == least


@pytest.mark.parametrize(("part", "name"), POSITIVE)
def test_what_no_machine_has_is_a_sentence_and_no_overflow(part: type[Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at most"):
        make(part, **{name: 10**20})


def test_a_context_holds_a_prompt_and_an_answer() -> None:
    with pytest.raises(ConfigError, match="max_model_len must be at least 2"):
        EngineConfig.from_options(max_model_len=1)


def test_a_seed_has_64_bits() -> None:
    with pytest.raises(ConfigError, match="seed must be"):
        EngineConfig(seed=2**64)


@pytest.mark.parametrize(("part", "name", "allowed"), CHOICES)
def test_a_choice_is_one_of_those_named(part: type[Any], name: str, allowed: str) -> None:
    for value in allowed.split(", "):
        assert getattr(make(part, **{name: value}), name) == value
    for wrong in ("none of them", "", None, 3):
        with pytest.raises(ConfigError) as caught:
            make(part, **{name: wrong})
        assert str(caught.value) == f"{name} must be one of {allowed}, not {wrong!r}"


def test_memory_is_said_in_one_way() -> None:
    with pytest.raises(ConfigError, match="give kv_cache_memory_bytes or num_blocks, not both"):
        KVConfig(kv_cache_memory_bytes=1 << 20, num_blocks=4)
    assert KVConfig(num_blocks=4).kv_cache_memory_bytes is None
    assert KVConfig(kv_cache_memory_bytes=1 << 20).num_blocks is None
    assert KVConfig().num_blocks is KVConfig().kv_cache_memory_bytes is None


def test_a_model_has_a_name() -> None:
    with pytest.raises(ConfigError, match="built-in name, a directory or a GGUF file, not ''"):
        ModelConfig(model="")


@pytest.mark.parametrize("part", [CacheConfig, KVConfig, ModelConfig, SchedulerConfig, EngineConfig])
def test_nothing_is_written_into_a_configuration(part: type[Any]) -> None:
    config = make(part)
    for item in dataclasses.fields(config):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, item.name, getattr(config, item.name))
    with pytest.raises((AttributeError, TypeError)):
        config.mailbox = 1


def test_the_defaults_of_the_design() -> None:
    cache = CacheConfig(num_blocks=8)
    assert (cache.block_size, cache.index, cache.policy, cache.free_order) == (16, "radix", "lru", "reverse")
    assert (cache.hash_algorithm, cache.enable_prefix_caching) == ("sha256_cbor", True)
    assert KVConfig().cache(8) == cache


def test_the_core_gets_what_the_engine_was_told() -> None:
    told = KVConfig(
        block_size=4,
        prefix_index="hash",
        eviction_policy="lru",
        enable_prefix_caching=False,
        prefix_caching_hash_algo="xxhash",
    )
    expected = CacheConfig(7, 4, "hash", "lru", enable_prefix_caching=False, hash_algorithm="xxhash")
    assert told.cache(num_blocks=7) == expected
    told = KVConfig(
        eviction_policy="ttl",
        eviction_ttl_seconds=1.0,
        eviction_half_life_seconds=2.0,
        eviction_protected_share=0.3,
        evict_generated_first=True,
        max_pinned_share=0.4,
        tenant_cache_share=0.2,
    )
    assert told.cache(num_blocks=7) == CacheConfig(
        7,
        policy="ttl",
        ttl_seconds=1.0,
        half_life_seconds=2.0,
        protected_share=0.3,
        evict_generated_first=True,
        max_pinned_share=0.4,
        tenant_share=0.2,
    )


@pytest.mark.parametrize(
    ("part", "name", "least", "most"),
    [
        (CacheConfig, "ttl_seconds", "a number above 0", "1e+09"),
        (CacheConfig, "half_life_seconds", "a number above 0", "1e+09"),
        (CacheConfig, "protected_share", "a number from 0", "1"),
        (CacheConfig, "max_pinned_share", "a number from 0", "1"),
        (KVConfig, "eviction_ttl_seconds", "a number above 0", "1e+09"),
        (KVConfig, "eviction_half_life_seconds", "a number above 0", "1e+09"),
        (KVConfig, "eviction_protected_share", "a number from 0", "1"),
        (KVConfig, "max_pinned_share", "a number from 0", "1"),
    ],
)
def test_a_time_or_share_is_a_number_in_its_range(part: type[Any], name: str, least: str, most: str) -> None:
    assert getattr(make(part, **{name: 1}), name) == 1
    if "from" in least:
        assert getattr(make(part, **{name: 0}), name) == 0
    wrong = [-1, 1e10, float("nan"), float("inf"), "1", None, True, *([0] if "above" in least else [])]
    for value in wrong:
        with pytest.raises(ConfigError) as caught:
            make(part, **{name: value})
        assert str(caught.value) == f"{name} must be {least} and up to {most}, not {value!r}"


@pytest.mark.parametrize(("part", "name"), [(CacheConfig, "tenant_share"), (KVConfig, "tenant_cache_share")])
def test_a_tenants_share_is_off_or_a_number_above_0(part: type[Any], name: str) -> None:
    assert getattr(make(part), name) is None
    assert getattr(make(part, **{name: 1}), name) == 1
    for value in (0, -0.1, 1.1, float("nan"), "0.5", True):
        with pytest.raises(ConfigError, match=f"{name} must be a number above 0 and up to 1, not "):
            make(part, **{name: value})


def test_sha256_is_cryptographic_and_xxhash_is_not() -> None:
    found = {name: is_cryptographic(name) for name in get_args(HashAlgorithm)}
    assert found == {"sha256": True, "sha256_cbor": True, "xxhash": False, "xxhash_cbor": False}


# Flat options


def test_options_find_their_part() -> None:
    config = EngineConfig.from_options(
        model="somewhere", dtype="float32", block_size=4, num_blocks=9, max_num_seqs=2, seed=7
    )
    assert config == EngineConfig(
        model=ModelConfig(model="somewhere", dtype="float32"),
        kv=KVConfig(block_size=4, num_blocks=9),
        scheduler=SchedulerConfig(max_num_seqs=2),
        seed=7,
    )
    assert EngineConfig.from_options() == EngineConfig()


def test_every_option_of_every_part_can_be_given_flat() -> None:
    parts = {"model": ModelConfig, "kv": KVConfig, "scheduler": SchedulerConfig}
    names = [item.name for part in parts.values() for item in dataclasses.fields(part)]
    assert len(names) == len(set(names))  # else one would hide the other
    for where, part in parts.items():
        for item in dataclasses.fields(part):
            config = EngineConfig.from_options(**{item.name: item.default})
            assert getattr(getattr(config, where), item.name) == item.default


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("blok_size", "block_size"),
        ("block-size", "block_size"),
        ("num_block", "num_blocks"),
        ("max_num_sequences", "max_num_seqs"),
        ("max_model_length", "max_model_len"),
        ("d_type", "dtype"),
        ("sed", "seed"),
        ("enable_prefix_cache", "enable_prefix_caching"),
    ],
)
def test_a_near_miss_is_named(wrong: str, right: str) -> None:
    with pytest.raises(ConfigError, match=f"^unknown option '{wrong}'; did you mean '{right}'\\?$"):
        EngineConfig.from_options(**{wrong: 1})


def test_a_far_miss_gets_the_list() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_options(zzz=1)
    names = re.fullmatch(r"unknown option 'zzz'; known are (.*)", str(caught.value))
    assert names is not None
    known = names[1].split(", ")
    assert known == sorted(known)
    assert {"block_size", "dtype", "max_num_seqs", "model", "seed"} <= set(known)


def test_a_parts_own_check_speaks_through_flat_options() -> None:
    with pytest.raises(ConfigError, match="block_size must be a whole number of at least 1, not 0"):
        EngineConfig.from_options(block_size=0)


def test_kv_events_are_configured_in_vllms_words() -> None:
    text = '{"enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv@pod@model", "buffer_steps": 5}'
    config = KVEventsConfig.from_json(text)
    assert config == KVEventsConfig(enable_kv_cache_events=True, topic="kv@pod@model", buffer_steps=5)
    options = {"enable_kv_cache_events": True, "topic": "kv@pod@model", "buffer_steps": 5}
    assert EngineConfig.from_options(kv_events_config=options).kv_events_config == config
    assert EngineConfig.from_options(kv_events_config=config).kv_events_config == config
    defaults = dataclasses.asdict(KVEventsConfig.from_json("{}"))
    assert (defaults["endpoint"], defaults["replay_endpoint"]) == ("tcp://*:5557", None)
    assert (defaults["buffer_steps"], defaults["hwm"], defaults["max_queue_size"]) == (
        10_000,
        100_000,
        100_000,
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "kv_events_config is not JSON: "),
        ("", "kv_events_config is not JSON: "),
        ("[1]", r"kv_events_config must be a JSON object, not \[1\]"),
        ('{"endpont": "x"}', "kv_events_config: unknown option 'endpont'; did you mean 'endpoint'?"),
        ('{"publisher": "kafka"}', "kv_events_config: publisher must be one of null, zmq, not 'kafka'"),
        ('{"enable_kv_cache_events": "yes"}', "enable_kv_cache_events must be true or false, not 'yes'"),
        ('{"endpoint": "tcp://*"}', r"endpoint must be like tcp://\*:5557 or ipc://.*, not 'tcp://\*'"),
        ('{"endpoint": "tcp://*:65536"}', "endpoint must be like"),
        ('{"endpoint": "tcp://*:0"}', "endpoint must be like"),
        ('{"endpoint": "inproc://x"}', "endpoint must be like"),
        ('{"endpoint": null}', "endpoint must be like"),
        ('{"replay_endpoint": 5558}', "replay_endpoint must be like"),
        ('{"replay_endpoint": "tcp://*:5557"}', "must differ; both are 'tcp://"),
        ('{"buffer_steps": 0}', "buffer_steps must be a whole number of at least 1, not 0"),
        ('{"hwm": true}', "hwm must be a whole number of at least 1, not True"),
        ('{"max_queue_size": 1.5}', "max_queue_size must be a whole number"),
        ('{"topic": 3}', "topic must be a text, not 3"),
    ],
)
def test_nonsense_about_kv_events_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        KVEventsConfig.from_json(text)


@pytest.mark.parametrize(
    "endpoint",
    ["tcp://*:5557", "tcp://[::]:5557", "tcp://indexer.example:1", "ipc:///x", "tcp://127.0.0.1:*"],
)
def test_where_events_can_go(endpoint: str) -> None:
    assert KVEventsConfig(endpoint=endpoint).endpoint == endpoint


def test_events_of_a_cache_that_is_off_are_refused() -> None:
    events = {"enable_kv_cache_events": True}
    with pytest.raises(ConfigError, match="KV events tell what the prefix cache holds"):
        EngineConfig.from_options(enable_prefix_caching=False, kv_events_config=events)
