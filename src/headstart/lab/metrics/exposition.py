"""One look at a ``/metrics`` page: its series by name, in Prometheus' text form."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from headstart.errors import HeadstartError

Labels = frozenset[tuple[str, str]]
MODEL = "model_name"
_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")


class MetricsError(HeadstartError):
    """A server whose metrics could not be read, or that say nothing about a prefix cache."""


@dataclass(frozen=True, slots=True)
class Exposition:
    """``series`` has every sample by its name and labels; ``families`` also those that have no sample yet.

    Names have underscores for colons, and no ``ray_`` in front: Ray Serve renames vLLM's that way.
    """

    series: Mapping[str, Mapping[Labels, float]]
    families: frozenset[str]

    @classmethod
    def parse(cls, text: str, source: str) -> Exposition:
        """Of a page that came from ``source``.  Raises ``MetricsError`` for one that is none."""
        series: dict[str, dict[Labels, float]] = defaultdict(dict)
        families: set[str] = set()
        try:
            for family in text_string_to_metric_families(text):
                families.add(_canonical(family.name))
                for sample in family.samples:
                    if math.isfinite(sample.value):
                        series[_canonical(sample.name)][frozenset(sample.labels.items())] = sample.value
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise MetricsError(f"{source} is no page of Prometheus metrics: {error}") from error
        if not series and not families:
            raise MetricsError(f"{source} is empty: there are no metrics on it")
        return cls({name: _of_first_rank(found) for name, found in series.items()}, frozenset(families))

    def counter(self, name: str) -> Mapping[Labels, float] | None:
        """A counter's series; none where it was not counted yet, and None where there is no such counter."""
        for spelling in (f"{name}_total", name):
            if spelling in self.series:
                return self.series[spelling]
        return {} if {name, f"{name}_total"} & self.families else None

    def gauge(self, name: str) -> Mapping[Labels, float] | None:
        """A gauge's series; None where there is no such gauge."""
        return self.series.get(name)

    def names(self) -> set[str]:
        """Of all families, and of samples without one."""
        return set(self.families) | set(self.series)


def _canonical(name: str) -> str:
    return name.removeprefix("ray_").replace(":", "_")


def _of_first_rank(found: Mapping[Labels, float]) -> dict[Labels, float]:
    """Ranks of one engine (tensor, pipeline, expert parallel) all tell of the same requests: one is enough.

    Data-parallel ranks are engines of their own, and stay.
    """
    best: dict[Labels, tuple[tuple[int, ...], float]] = {}
    for labels, value in found.items():
        by_name = dict(labels)
        rank = tuple(_whole(by_name.pop(name, "0")) for name in _RANKS)
        rest = frozenset(by_name.items())
        if rest not in best or rank < best[rest][0]:
            best[rest] = (rank, value)
    return {labels: value for labels, (_, value) in best.items()}


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else 0
