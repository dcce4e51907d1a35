"""From a configuration to an engine that can step: model, memory, cache, scheduler.  Torch begins here."""

from __future__ import annotations

import time
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path

from headstart.cache import KVCacheManager
from headstart.cache.whatif import WhatIf
from headstart.config import CacheConfig, EngineConfig, KVConfig
from headstart.engine.core import EngineCore
from headstart.engine.decision_log import DecisionLog, check_place, open_decision_log
from headstart.engine.event_publisher import ZmqPublisher, open_publisher
from headstart.engine.grammars import Grammars
from headstart.engine.limits import Limits
from headstart.engine.messages import EngineInfo
from headstart.engine.recording import RecordingManager, steps_between_digests
from headstart.engine.runner import Runner
from headstart.engine.sampler import Sampler
from headstart.engine.scheduler import AUTO_LIMIT, Scheduler
from headstart.errors import ConfigError
from headstart.model.attention import SdpaAttention, fused_attention
from headstart.model.device import free_memory, resolve_device, resolve_dtype
from headstart.model.kv_pool import KVPool
from headstart.model.llama import load_model
from headstart.model.source import resolve
from headstart.model.spec import ModelSpec, read_spec
from headstart.text import Tokenizer

_HOST_SHARE, _HOST_BOUND = 0.25, 4 << 30
"""Of a CPU's free memory the pool takes a quarter, at most 4 GiB: other programs live there too."""
_DEVICE_SHARE = 0.85
"""Of an accelerator's free memory; the rest is for activations."""


def build_engine(config: EngineConfig) -> tuple[EngineCore, EngineInfo]:
    """Load the model, allocate the pool; returns the engine and what there is to say about it.

    Raises ``ModelError``, ``ConfigError`` or ``EngineError`` (no memory).
    """
    # In microseconds: no engine steps so often, so its batches are numbered above all that came before.
    epoch = time.time_ns() // 1000
    publisher = open_publisher(config.kv_events_config, epoch)
    try:
        return _build(config, epoch, publisher)
    except BaseException:
        if publisher is not None:
            publisher.close()
        raise


def _build(config: EngineConfig, epoch: int, publisher: ZmqPublisher | None) -> tuple[EngineCore, EngineInfo]:
    if config.decision_log is not None:
        check_place(Path(config.decision_log))
    files = resolve(config.model.model)
    spec = read_spec(files)
    device = resolve_device(config.model.device)
    dtype = resolve_dtype(config.model.dtype, device)
    max_model_len = _context_length(config, spec)
    native = config.model.kernels == "auto"
    model = load_model(files, spec, dtype=dtype, device=device, native=native)
    step = config.scheduler
    most = AUTO_LIMIT if step.max_num_batched_tokens == "auto" else step.max_num_batched_tokens
    model.warm_up(most, step.max_num_seqs)
    bytes_per_token = spec.kv_bytes_per_token(dtype.itemsize)
    on_host = device.type == "cpu"
    num_blocks = _num_blocks(config.kv, bytes_per_token, free_memory(device), on_host=on_host)
    pool = KVPool(spec, num_blocks=num_blocks, block_size=config.kv.block_size, dtype=dtype, device=device)
    attention = (fused_attention(pool, spec.num_heads) if native else None) or SdpaAttention()
    cache = replace(
        config.kv.cache(num_blocks),
        enable_kv_cache_events=config.kv_events_config.enable_kv_cache_events,
    )
    watched = config.kv.estimate_hit_rates and cache.enable_prefix_caching and cache.policy == "lru"
    what_if = WhatIf(num_blocks, cache.block_size) if watched else None
    manager, log = _manager(cache, config.decision_log, epoch, what_if)
    core = EngineCore(
        Scheduler(config.scheduler, manager),
        Runner(model, pool, attention, Sampler(config.seed)),
        Limits(
            max_model_len,
            spec.vocab_size,
            num_blocks,
            config.kv.block_size,
            priorities=config.scheduler.scheduling_policy == "priority",
        ),
        publisher=publisher,
        matchers=Grammars(partial(Tokenizer.from_directory, files.tokenizer_dir), spec.vocab_size),
    )
    if publisher is not None:
        weakref.finalize(core, publisher.close)
    if isinstance(manager, RecordingManager):
        weakref.finalize(core, manager.close)  # however the engine ends, but for a kill, its log gets an end
    info = EngineInfo(
        model_name=config.model.served_model_name or config.model.model,
        model_type=spec.architecture,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        vocab_size=spec.vocab_size,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=config.kv.block_size,
        kv_bytes_per_token=bytes_per_token,
        kv_pool_bytes=pool.nbytes,
        prefix_index=config.kv.prefix_index,
        eviction_policy=config.kv.eviction_policy,
        enable_prefix_caching=config.kv.enable_prefix_caching,
        max_num_batched_tokens=most,
        max_num_seqs=config.scheduler.max_num_seqs,
        weights_bytes=model.nbytes,
        scheduling_policy=config.scheduler.scheduling_policy,
        max_queued_requests=config.scheduler.max_queued_requests,
        decision_log=str(log.path.absolute()) if log is not None and log.is_open else None,
        kv_events_endpoint=None if publisher is None else publisher.endpoint,
        kv_events_replay_endpoint=None if publisher is None else publisher.replay_endpoint,
    )
    return core, info


def _manager(
    cache: CacheConfig, path: str | None, epoch: int, what_if: WhatIf | None
) -> tuple[KVCacheManager, DecisionLog | None]:
    if path is None:
        return KVCacheManager(cache, epoch=epoch, what_if=what_if), None
    log = open_decision_log(Path(path), cache)
    every = steps_between_digests(cache.num_blocks)
    return RecordingManager(cache, log, every, epoch=epoch, what_if=what_if), log


def _context_length(config: EngineConfig, spec: ModelSpec) -> int:
    asked = config.scheduler.max_model_len
    if asked is not None and asked > spec.max_position_embeddings:
        raise ConfigError(
            f"max_model_len is {asked}, but the model knows {spec.max_position_embeddings} positions"
        )
    return asked or spec.max_position_embeddings


def _num_blocks(kv: KVConfig, bytes_per_token: int, free: int, *, on_host: bool) -> int:
    if kv.num_blocks is not None:
        return kv.num_blocks
    share = min(int(free * _HOST_SHARE), _HOST_BOUND) if on_host else int(free * _DEVICE_SHARE)
    budget = kv.kv_cache_memory_bytes or share
    block_bytes = kv.block_size * bytes_per_token
    if budget < block_bytes:
        raise ConfigError(
            f"{budget:,} bytes of KV memory do not hold one block of {kv.block_size} tokens "
            f"({block_bytes:,} bytes)"
        )
    return budget // block_bytes
