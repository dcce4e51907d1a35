from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
import torch
import zmq

from headstart.cache.events import AllBlocksCleared, BlockStored
from headstart.config import EngineConfig, KVConfig
from headstart.engine.build import _num_blocks, build_engine
from headstart.engine.event_wire import decode
from headstart.engine.request import SamplingParams
from headstart.errors import ConfigError, EngineError, ModelNotFoundError
from headstart.lab.decisions.reader import LogReader
from headstart.lab.decisions.replay import replay

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("kv", "free", "on_host", "blocks"),
    [
        (KVConfig(num_blocks=7), 1, True, 7),
        (KVConfig(kv_cache_memory_bytes=MIB), 1, True, 64),
        (KVConfig(kv_cache_memory_bytes=MIB + 16 * KIB - 1), 1, True, 64),
        (KVConfig(kv_cache_memory_bytes=MIB, block_size=32), 1, True, 32),
        (KVConfig(), 8 * GIB, True, 2 * GIB // (16 * KIB)),  # a quarter
        (KVConfig(), 100 * GIB, True, 4 * GIB // (16 * KIB)),  # at most 4 GiB
        (KVConfig(), 100 * GIB, False, 85 * GIB // (16 * KIB)),  # of an accelerator nearly all
    ],
)
def test_how_many_blocks_there_are(kv: KVConfig, free: int, on_host: bool, blocks: int) -> None:
    assert _num_blocks(kv, KIB, free, on_host=on_host) == blocks


def test_memory_for_less_than_a_block_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"16,383 bytes .* one block of 16 tokens \(16,384 bytes\)"):
        _num_blocks(KVConfig(kv_cache_memory_bytes=16 * KIB - 1), KIB, GIB, on_host=True)


def test_an_engine_is_what_its_configuration_says(tiny_llama_dir: Path) -> None:
    core, info = build_engine(
        EngineConfig.from_options(
            model=str(tiny_llama_dir),
            served_model_name="tiny",
            dtype="bfloat16",
            device="cpu",
            kv_cache_memory_bytes=MIB,
            block_size=8,
            prefix_index="hash",
            max_model_len=500,
            max_num_batched_tokens=64,
            max_num_seqs=3,
        )
    )
    per_token = 2 * 3 * 2 * 16 * 2  # K and V, 3 layers, 2 heads of 16, 2 bytes
    assert (info.model_name, info.model_type, info.dtype, info.device) == ("tiny", "llama", "bfloat16", "cpu")
    assert (info.vocab_size, info.max_model_len, info.block_size) == (512, 500, 8)
    assert info.kv_bytes_per_token == per_token
    assert info.num_blocks == MIB // (8 * per_token)
    assert info.kv_pool_bytes == info.num_blocks * 8 * per_token
    assert (info.prefix_index, info.eviction_policy, info.enable_prefix_caching) == ("hash", "lru", True)
    assert (info.max_num_batched_tokens, info.max_num_seqs) == (64, 3)
    assert info.weights_bytes > 100_000
    assert (core.limits.max_model_len, core.limits.vocab_size, core.limits.num_blocks) == (
        500,
        512,
        info.num_blocks,
    )
    core.add_request("a", list(range(100)), SamplingParams(temperature=0.0, max_tokens=1))
    core.step()  # 64 tokens of it
    assert core.stats().kv_cache_usage == pytest.approx(8 / info.num_blocks)
    (output,) = core.step()
    assert output.finish_reason == "length"


@pytest.mark.parametrize(
    ("options", "watched"),
    [({}, True), ({"estimate_hit_rates": False}, False), ({"enable_prefix_caching": False}, False)],
)
@pytest.mark.parametrize("logged", [False, True])
def test_hit_rates_are_estimated_unless_told_otherwise(
    tiny_llama_dir: Path, tmp_path: Path, options: dict[str, bool], watched: bool, logged: bool
) -> None:
    log = str(tmp_path / "log") if logged else None
    config = EngineConfig.from_options(
        model=str(tiny_llama_dir), device="cpu", num_blocks=20, block_size=4, decision_log=log, **options
    )
    core, _ = build_engine(config)
    for name in "ab":
        core.add_request(name, list(range(9)), SamplingParams(temperature=0.0, max_tokens=1))
        core.step()
    expected = dict.fromkeys(("0.5x", "1x", "2x", "4x"), 8 / 18) if watched else {}
    assert core.stats().hit_rate_estimates == pytest.approx(expected, rel=0.001)  # the first weighs less


def test_defaults_are_the_models_own(tiny_llama_dir: Path) -> None:
    _, info = build_engine(EngineConfig.from_options(model=str(tiny_llama_dir), num_blocks=10))
    assert (info.model_name, info.max_model_len) == (str(tiny_llama_dir), 2048)
    assert (info.block_size, info.prefix_index) == (16, "radix")
    assert getattr(torch, info.dtype) in (torch.float32, torch.bfloat16)


def test_a_context_longer_than_the_models_is_refused_with_both_numbers(tiny_llama_dir: Path) -> None:
    with pytest.raises(ConfigError, match="max_model_len is 2049, but the model knows 2048 positions"):
        build_engine(EngineConfig.from_options(model=str(tiny_llama_dir), max_model_len=2049))


def test_a_pool_larger_than_the_memory_is_refused(tiny_llama_dir: Path) -> None:
    with pytest.raises(EngineError, match="bytes are free"):
        build_engine(EngineConfig.from_options(model=str(tiny_llama_dir), num_blocks=2 * 10**9))


def test_a_model_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelNotFoundError):
        build_engine(EngineConfig.from_options(model="nowhere"))


def test_an_engine_with_a_decision_log_writes_it_to_its_end(tiny_llama_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    config = EngineConfig.from_options(model=str(tiny_llama_dir), num_blocks=10, decision_log=str(path))
    core, info = build_engine(config)
    assert info.decision_log == str(path)
    core.add_request("a", list(range(40)), SamplingParams(temperature=0.0, max_tokens=2))
    while core.has_work:
        core.step()
    core.reset_prefix_cache()
    del core
    with path.open("rb") as file:
        outcome = replay(LogReader(file, path.name))
    assert outcome.agrees
    assert outcome.closed
    assert (outcome.num_steps, outcome.stats.queries) == (2, 40)


def test_a_place_for_no_decision_log_is_told_before_the_model_is_looked_for(tmp_path: Path) -> None:
    config = EngineConfig.from_options(model="no-such-model", decision_log=str(tmp_path / "no" / "log"))
    with pytest.raises(ConfigError, match=r"decision_log cannot be .*: there is no directory"):
        build_engine(config)


def test_an_engine_with_events_publishes_them_until_it_ends(tiny_llama_dir: Path, tmp_path: Path) -> None:
    path, started = tmp_path / "run.log", threading.active_count()
    events = {
        "enable_kv_cache_events": True,
        "endpoint": "tcp://127.0.0.1:*",
        "replay_endpoint": f"ipc://{tmp_path}/again",
    }
    config = EngineConfig.from_options(
        model=str(tiny_llama_dir),
        num_blocks=10,
        kv_events_config=events,
        decision_log=str(path),
        device="cpu",
    )
    core, info = build_engine(config)
    assert str(info.kv_events_endpoint).startswith("tcp://127.0.0.1:")
    assert info.kv_events_replay_endpoint == f"ipc://{tmp_path}/again"
    core.add_request("a", list(range(40)), SamplingParams(temperature=0.0, max_tokens=1))
    core.step()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.RCVTIMEO, 60_000)
    dealer.connect(info.kv_events_replay_endpoint)
    dealer.send_multipart([b"", bytes(8)])
    batches = [dealer.recv_multipart()[1:] for _ in range(3)]
    context.destroy(linger=0)
    (first, cleared), (second, payload), _ = batches
    assert (
        int.from_bytes(second, "big") == int.from_bytes(first, "big") + 1 > 10**15
    )  # microseconds since 1970
    assert decode(cleared).events == [AllBlocksCleared()]
    (event,) = decode(payload).events
    assert isinstance(event, BlockStored)
    assert (event.token_ids, event.medium) == (tuple(range(32)), "GPU")  # the pool, wherever it is
    del core
    assert threading.active_count() == started
    with path.open("rb") as file:
        reader = LogReader(file, path.name)
        assert reader.header.cache.enable_kv_cache_events
        assert replay(reader).agrees


def test_an_engine_that_cannot_be_built_leaves_no_socket(tmp_path: Path) -> None:
    started = threading.active_count()
    events = {"enable_kv_cache_events": True, "endpoint": f"ipc://{tmp_path}/pub"}
    with pytest.raises(ModelNotFoundError):
        build_engine(EngineConfig.from_options(model="nowhere", kv_events_config=events))
    assert threading.active_count() == started
    with socket.create_server(("127.0.0.1", 0)) as taken:
        events["endpoint"] = f"tcp://*:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"endpoint tcp://.* cannot be used: Address already in use"):
            build_engine(EngineConfig.from_options(model="nowhere", kv_events_config=events))
