"""What the figures of a window mean, in sentences."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart.lab.metrics.reading import Reading


class State(StrEnum):
    """What usage and rate come to together."""

    HEALTHY = "healthy"
    CAPACITY = "capacity"
    ROUTING_OR_PROMPTS = "routing or prompts"
    NOTHING_SHARED = "nothing shared"
    IDLE = "idle"
    OFF = "off"
    UNKNOWN = "unknown"


_SENTENCES = {
    State.HEALTHY: "much is hit, and running requests leave room to keep more: nothing to do.",
    State.CAPACITY: (
        "running requests fill the pool, and little is left to keep prefixes in: more memory for KV "
        "(--gpu-memory-utilization, --mem-fraction-static, a smaller KV type), fewer requests at once, or "
        "another replica."
    ),
    State.ROUTING_OR_PROMPTS: (
        "the cache does its work and the pool is full: what is left to win is in routing (each prefix to one "
        "replica) or in the prompts (shorter, and what varies at the end)."
    ),
    State.NOTHING_SHARED: (
        "there is room, and still little is hit: prompts have no beginning in common (look for a time stamp "
        "or an id in front), or one that is shorter than a block, so that blocks are too big."
    ),
    State.UNKNOWN: "the page does not tell enough to read hit rate and usage together.",
}
_ADVICE = {
    "cold": "text that was not seen before",
    "evicted": "cached once and evicted, so that a larger pool would have hit it",
    "diverged": "known text behind another beginning: look for what varies at the front of prompts",
    "isolated": "cached under another salt or adapter",
    "unaligned": "lost to the block boundary: use the radix index, or smaller blocks",
    "last_token": "the last token of each prompt, which is always computed",
    "in_flight": "being computed by another request at that moment",
    "skipped": "of requests that do not read the cache",
}
_FEW_REQUESTS = 20


def sentence_of(reading: Reading) -> str:
    """What to do about it."""
    if reading.state is State.IDLE:
        running = f"{reading.running or 0:,.0f} run and {reading.waiting or 0:,.0f} wait"
        return (
            f"no prompt was looked up within {reading.seconds:,.1f} s ({running}): send traffic, or take "
            "a longer --window."
        )
    if reading.state is State.OFF:
        computed = (
            f"{reading.prompt_tokens or 0:,.0f} prompt tokens were computed, and none is ever looked up"
        )
        return f"{computed}: prefix caching is off (--enable-prefix-caching turns it on)."
    return _SENTENCES[reading.state]


def notes_of(reading: Reading) -> list[str]:
    """What else a reader should know."""
    notes = []
    if reading.rate_source == "gauge":
        notes.append(
            "There are no counters of hits: the rate is the engine's own gauge, over its own window."
        )
    elif reading.requests and reading.requests < _FEW_REQUESTS:
        notes.append(f"Only {reading.requests:,.0f} requests ended in the window: take a longer --window.")
    fullest, usage = reading.max_kv_usage, reading.kv_usage
    if fullest is not None and usage is not None and usage < reading.thresholds.usage <= fullest:
        notes.append(f"One engine's pool is {fullest:.0%} full, others are not: see how requests are spread.")
    if reading.preemptions:
        preempted = f"{reading.preemptions:,.0f} requests were preempted"
        notes.append(f"{preempted}: the pool is too small for what runs at once.")
    if reading.misses:
        reason, tokens = max(reading.misses.items(), key=lambda item: item[1])
        share = tokens / sum(reading.misses.values())
        notes.append(f"Most misses ({share:.0%}) are {reason}: {_ADVICE.get(reason, 'see docs/misses.md')}.")
    return notes
