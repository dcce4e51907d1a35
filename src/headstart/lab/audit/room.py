"""Is there room, and does the load fit the limits?  By what the metrics have counted since the start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headstart.lab.audit.line import Line, Word
from headstart.lab.audit.target import Target
from headstart.lab.metrics import Engine, Window
from headstart.lab.metrics.engines import CONFIG, ESTIMATE, MISS_TOKENS
from headstart.lab.metrics.exposition import MetricsError

FEW_CONVERSATIONS = 8
"""Room for fewer mean prompts than that, and whoever comes back finds little."""
MANY_EVICTED = 0.1
"""Of missed tokens."""


@dataclass(frozen=True, slots=True)
class _Config:
    """How the cache is configured, as far as the metrics tell."""

    block_size: int | None
    num_blocks: int | None
    to_the_token: bool

    @property
    def num_tokens(self) -> int | None:
        if self.block_size is None or self.num_blocks is None:
            return None
        return self.block_size * self.num_blocks


def check_room(target: Target) -> Iterator[Line]:
    """Block size, KV memory and batching.  The metrics are read now: later they count our requests."""
    try:
        return _lines(target, target.counted())
    except MetricsError as error:
        advice = "headstart: --admin-api-key, if it has one, and --metrics-url, if it has an --admin-port"
        return iter([Line("metrics", Word.UNKNOWN, str(error), advice)])


def _lines(target: Target, counted: Window) -> Iterator[Line]:
    config = _config(counted)
    prompt = counted.mean(("vllm_request_prompt_tokens", "sglang_prompt_tokens_histogram"))
    yield _block_size(config, prompt)
    yield _kv_room(config, prompt, target.max_model_len)
    yield _evictions(counted)
    yield _batching(counted)


def _config(counted: Window) -> _Config:
    for name in CONFIG:
        for labels, _ in counted.labels(name):
            size = _number(labels.get("block_size", labels.get("page_size")))
            blocks = _number(labels.get("num_gpu_blocks", labels.get("num_pages")))
            return _Config(size, blocks, labels.get("prefix_index") == "radix" or size == 1)
    return _Config(None, None, counted.engine is Engine.SGLANG)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and int(text) > 0 else None


def _block_size(config: _Config, prompt: float | None) -> Line:
    name = "block size against prompts"
    if config.to_the_token:
        return Line(name, Word.OK, "prefixes are matched to the token, whatever the block size")
    if config.block_size is None or prompt is None:
        return Line(name, Word.UNKNOWN, "the metrics tell no block size, or no request has ended yet")
    lost = (config.block_size - 1) / 2
    share = lost / prompt
    why = f"blocks of {config.block_size} cost {lost:g} tokens of a mean prompt of {prompt:,.0f}: {share:.1%}"
    if share <= 0.05:
        return Line(name, Word.OK, why)
    return Line(
        name, Word.FAIL if share > 0.25 else Word.WARN, why, "a smaller --block-size, or --page-size 1"
    )


def _kv_room(config: _Config, prompt: float | None, max_model_len: int | None) -> Line:
    name = "room for KV"
    room = config.num_tokens
    if room is None:
        return Line(name, Word.UNKNOWN, "the metrics tell no number of blocks")
    if max_model_len is not None and room < max_model_len:
        return Line(
            name,
            Word.FAIL,
            f"{room:,} tokens, fewer than one request of the {max_model_len:,} that are allowed",
            "more KV memory, or a smaller --max-model-len",
        )
    if prompt is None:
        return Line(name, Word.OK, f"{room:,} tokens; no request has ended yet")
    fits = room / prompt
    why = f"{room:,} tokens: {fits:,.0f} mean prompts of {prompt:,.0f}"
    if fits >= FEW_CONVERSATIONS:
        return Line(name, Word.OK, why)
    return Line(name, Word.WARN, why, "more KV memory: who comes back will find little of what was cached")


def _evictions(counted: Window) -> Line:
    name = "evictions"
    preempted = counted.increase(counted.names.preemptions)
    if preempted:
        return Line(
            name,
            Word.WARN,
            f"{preempted:,.0f} requests were put back to make room for others",
            "more KV memory, or a smaller --max-num-seqs",
        )
    missed = counted.by_label(MISS_TOKENS, "reason")
    if num_missed := sum(missed.values()):
        share = missed.get("evicted", 0.0) / num_missed
        why = f"{share:.1%} of the computed prompt tokens were cached before and given up"
        if share <= MANY_EVICTED:
            return Line(name, Word.OK, why)
        rates = {labels["capacity"]: rate for labels, rate in counted.labels(ESTIMATE)}
        more = f": twice as much is estimated to hit {rates['2x']:.0%}" if "2x" in rates else ""
        return Line(name, Word.WARN, why, f"more KV memory{more}")
    evicted = counted.increase(counted.names.evicted)
    if evicted is None:
        return Line(name, Word.UNKNOWN, "no preemption; the metrics do not count evictions")
    return Line(name, Word.OK, f"no preemption; {evicted:,.0f} evicted since the start")


def _batching(counted: Window) -> Line:
    name = "batching limits"
    running, waiting = (
        sum(counted.gauges(names)) for names in (counted.names.running, counted.names.waiting)
    )
    usage = counted.gauges(counted.names.usage)
    if not usage:
        return Line(name, Word.UNKNOWN, "the metrics tell no KV usage")
    state = f"{running:,.0f} running, {waiting:,.0f} waiting, {max(usage):.0%} of the KV memory in use"
    if waiting and max(usage) < 0.8:
        return Line(
            name,
            Word.WARN,
            f"{state}: requests wait though there is memory",
            "a larger --max-num-seqs or --max-num-batched-tokens (SGLang: --max-running-requests)",
        )
    if waiting:
        return Line(name, Word.WARN, f"{state}: the memory is the limit", "more KV memory, or more replicas")
    return Line(name, Word.OK, f"{state}, right now")
