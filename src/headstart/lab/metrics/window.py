"""Two looks at one page, and what happened between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter

from headstart.lab.metrics.engines import VOCABULARY, Engine, Names, Vocabulary, engine_of
from headstart.lab.metrics.exposition import MODEL, Exposition, Labels, MetricsError
from headstart.lab.metrics.scrape import Scraper

_TOTAL = ("cache_source", "total")


@dataclass(frozen=True, slots=True)
class Window:
    """What a server counted within ``seconds``; with ``model``, only the series of that one.

    Counters are added up over engines, data-parallel ranks and other labels; series that name no model
    count for the only one, where there is only one.
    """

    source: str
    engine: Engine
    before: Exposition
    after: Exposition
    seconds: float
    model: str | None = None

    @property
    def names(self) -> Vocabulary:
        """What this engine calls things."""
        return VOCABULARY[self.engine]

    def models(self) -> list[str | None]:
        """The models that have series of the cache; one None where none is named."""
        names = (*self.names.queries, *self.names.usage, *self.names.running, *self.names.rate_gauge)
        found = {
            dict(labels).get(MODEL)
            for name in names
            for labels in {**(self.after.counter(name) or {}), **(self.after.gauge(name) or {})}
        }
        named = sorted(model for model in found if model is not None)
        return list(named) or [None]

    # -- counters --------------------------------------------------------------------------------

    def increase(self, names: Names, **where: str) -> float | None:
        """How much was counted in the window; None if the engine does not count it.

        Raises ``MetricsError`` if a counter went back: then it began again at 0, and nobody knows when.
        """
        found = self._counters(names, where)
        if found is None:
            return None
        before, after = found
        for labels, value in before.items():
            if after.get(labels, 0.0) < value:
                raise self._two_servers("counters of {} went back within the window")
        return sum(after.values()) - sum(before.values())

    def check_server(self) -> None:
        """Raises ``MetricsError`` if the second look was at another process, whose counters may be higher."""
        for name in ("process_start_time_seconds", *(f"{name}_created" for name in self.names.queries)):
            after = self.after.gauge(name) or {}
            for labels, started in (self.before.gauge(name) or {}).items():
                if after.get(labels, started) != started:
                    raise self._two_servers("{} was another process at the end of the window")

    def _two_servers(self, what: str) -> MetricsError:
        return MetricsError(
            f"{what.format(self.source)}: a server was restarted, or several answer in turn behind this "
            "address; try again, or ask each of them"
        )

    def total(self, names: Names) -> float | None:
        """What was counted since the server's start."""
        found = self._counters(names, {})
        return None if found is None else sum(found[1].values())

    def mean(self, names: Names) -> float | None:
        """The mean of a histogram's observations in the window; None without any."""
        count = self.increase(tuple(f"{name}_count" for name in names))
        total = self.increase(tuple(f"{name}_sum" for name in names))
        return total / count if count and total is not None else None

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """A counter's increase for each value of a label, those with none left out."""
        values = sorted(
            {dict(labels)[label] for labels in self.after.counter(name) or {} if label in dict(labels)}
        )
        increases = {value: self.increase((name,), **{label: value}) or 0.0 for value in values}
        return {value: increase for value, increase in increases.items() if increase}

    def _counters(
        self, names: Names, where: Mapping[str, str]
    ) -> tuple[Mapping[Labels, float], Mapping[Labels, float]] | None:
        for name in names:
            after = self.after.counter(name)
            if after is not None:
                before = self.before.counter(name) or {}
                return self._chosen(before, where), self._chosen(after, where)
        return None

    # -- gauges ----------------------------------------------------------------------------------

    def gauges(self, names: Names, *, at_the_end: bool = True) -> list[float]:
        """A gauge's values at one end of the window: one for each engine; empty if there is none."""
        page = self.after if at_the_end else self.before
        for name in names:
            found = page.gauge(name)
            if found is not None:
                return list(self._chosen(found, {}).values())
        return []

    def labels(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """A gauge's series at the end of the window, with their labels."""
        for labels, value in self._chosen(self.after.gauge(name) or {}, {}).items():
            yield dict(labels), value

    # -- which series ----------------------------------------------------------------------------

    def _chosen(self, found: Mapping[Labels, float], where: Mapping[str, str]) -> dict[Labels, float]:
        chosen = {labels: value for labels, value in found.items() if self._is_chosen(dict(labels), where)}
        parts = {labels: value for labels, value in chosen.items() if _TOTAL not in labels}
        return parts or chosen  # SGLang's cached tokens come by source, and once more as their total

    def _is_chosen(self, labels: Mapping[str, str], where: Mapping[str, str]) -> bool:
        if self.model is not None and labels.get(MODEL, self.model) != self.model:
            return False
        return all(labels.get(name) == value for name, value in where.items())


def watch(scraper: Scraper, seconds: float, wait: Callable[[float], None]) -> Window:
    """Reads the page, lets ``wait`` pass the time, and reads it again.  Raises ``MetricsError``."""
    source = str(scraper.url)
    before = scraper.read()
    started = perf_counter()
    engine = engine_of(before, source)
    wait(seconds)
    after = scraper.read()
    if engine_of(after, source) is not engine:
        raise MetricsError(f"{source} was {engine}'s page at first, and is not any more")
    return Window(source, engine, before, after, perf_counter() - started)
