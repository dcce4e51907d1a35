"""Token hit rate and KV usage read together: what is the matter, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from headstart.errors import ConfigError
from headstart.lab.metrics.engines import CONFIG, ESTIMATE, EVICTED_UNIT, MISS_TOKENS, Engine
from headstart.lab.metrics.window import Window
from headstart.lab.metrics.words import State, notes_of, sentence_of


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From where usage and token hit rate count as high, each from 0 to 1.  Raises ``ConfigError``."""

    usage: float = 0.8
    rate: float = 0.5

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 <= value <= 1:
                raise ConfigError(f"the threshold for {name} is a share from 0 to 1, not {value}")


@dataclass(frozen=True, slots=True)
class Reading:
    """One model's figures in a window.  None is what the page does not tell.

    ``token_hit_rate`` is of the window; ``rate_source`` says whether from counters, or an engine's own gauge.
    ``lifetime_hit_rate`` is since the server's start.  ``external_hit_tokens`` came from outside of the pool
    (a KV connector), and are not in the rate.  ``kv_usage`` is the mean over engines and both ends of the
    window, ``max_kv_usage`` of the fullest engine; running and waiting requests are those at the end.
    Times are means over what ended in the window.  ``misses`` are tokens by reason, and ``estimates`` hit
    rates by capacity, where the server is headstart.
    """

    engine: Engine
    model: str | None
    seconds: float
    num_engines: int
    state: State
    sentence: str
    query_tokens: float | None
    hit_tokens: float | None
    token_hit_rate: float | None
    rate_source: str | None
    lifetime_hit_rate: float | None
    external_hit_tokens: float | None
    prompt_tokens: float | None
    requests: float | None
    kv_usage: float | None
    kv_usage_before: float | None
    kv_usage_after: float | None
    max_kv_usage: float | None
    running: float | None
    waiting: float | None
    preemptions: float | None
    evicted: float | None
    evicted_unit: str
    queue_time_s: float | None
    first_token_s: float | None
    misses: dict[str, float]
    estimates: dict[str, float]
    thresholds: Thresholds
    notes: list[str]

    def fields(self) -> dict[str, Any]:
        """Everything, in JSON's types."""
        return asdict(self)


def readings(window: Window, thresholds: Thresholds | None = None) -> list[Reading]:
    """One for each model on the page.  Raises ``MetricsError`` if the server was restarted."""
    limits = thresholds or Thresholds()
    window.check_server()
    return [_of_model(replace(window, model=model), limits) for model in window.models()]


def _of_model(window: Window, limits: Thresholds) -> Reading:
    names = window.names
    queries, hits = window.increase(names.queries), window.increase(names.hits)
    total_queries, total_hits = window.total(names.queries), window.total(names.hits)
    rate, source = _ratio(hits, queries), "counters"
    if queries is None or hits is None:
        gauges = [value for value in window.gauges(names.rate_gauge) if 0 <= value <= 1]
        rate, source = (fmean(gauges) if gauges else None), "gauge"
    usages = {end: window.gauges(names.usage, at_the_end=end) for end in (False, True)}
    before, after = (fmean(usages[end]) if usages[end] else None for end in (False, True))
    known = [value for value in (before, after) if value is not None]
    usage = fmean(known) if known else None
    prompt_tokens = window.increase(names.prompt_tokens)
    state = _state(rate, usage, limits, is_idle=not queries and source == "counters")
    if state is State.IDLE and _is_off(window):
        state = State.OFF
    reading = Reading(
        engine=window.engine,
        model=window.model,
        seconds=window.seconds,
        num_engines=max(1, len(usages[True])),
        state=state,
        sentence="",
        query_tokens=queries,
        hit_tokens=hits,
        token_hit_rate=rate,
        rate_source=None if rate is None else source,
        lifetime_hit_rate=_ratio(total_hits, total_queries),
        external_hit_tokens=window.increase(names.external_hits) or None,
        prompt_tokens=prompt_tokens,
        requests=window.increase(names.requests),
        kv_usage=usage,
        kv_usage_before=before,
        kv_usage_after=after,
        max_kv_usage=max(usages[True], default=None),
        running=_sum(window.gauges(names.running)),
        waiting=_sum(window.gauges(names.waiting)),
        preemptions=window.increase(names.preemptions),
        evicted=window.increase(names.evicted),
        evicted_unit=EVICTED_UNIT[window.engine],
        queue_time_s=window.mean(names.queue_time),
        first_token_s=window.mean(names.first_token),
        misses=window.by_label(MISS_TOKENS, "reason"),
        estimates={labels["capacity"]: value for labels, value in window.labels(ESTIMATE)},
        thresholds=limits,
        notes=[],
    )
    return replace(reading, sentence=sentence_of(reading), notes=notes_of(reading))


def _state(rate: float | None, usage: float | None, limits: Thresholds, *, is_idle: bool) -> State:
    if is_idle:
        return State.IDLE
    if rate is None or usage is None:
        return State.UNKNOWN
    if rate >= limits.rate:
        return State.ROUTING_OR_PROMPTS if usage >= limits.usage else State.HEALTHY
    return State.CAPACITY if usage >= limits.usage else State.NOTHING_SHARED


def _is_off(window: Window) -> bool:
    """Whether the server says so; if it says nothing, whether it computes prompts and never looked one up."""
    said = {labels.get("enable_prefix_caching", "") for name in CONFIG for labels, _ in window.labels(name)}
    words = {word.lower() for word in said if word}
    if words:
        return words == {"false"}
    return not window.total(window.names.queries) and bool(window.increase(window.names.prompt_tokens))


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _sum(values: list[float]) -> float | None:
    return sum(values) if values else None
