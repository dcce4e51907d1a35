"""The Grafana dashboard in contrib/ asks for series that exist, by labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

DASHBOARD = json.loads((Path(__file__).parents[2] / "contrib/grafana/headstart.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
OF_PROMETHEUS = {"job", "instance"}
"""Labels that the scraper adds."""


def expressions() -> Iterator[tuple[str, str, str]]:
    """Title, query and legend of everything that is drawn."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]


@pytest.fixture
def series(client: TestClient, engine: Any) -> dict[str, set[str]]:
    """The labels of each series that a server has."""
    engine.stats = type(engine.stats)(hit_rate_estimates={"1x": 0.5})
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def test_every_series_exists_with_its_labels(series: dict[str, set[str]]) -> None:
    for title, query, legend in expressions():
        names = re.findall(r"((?:vllm|headstart):\w+)\{([^}]*)\}", query)
        assert names, f"{title}: no series in {query}"
        assert len(names) == len(re.findall(r"(?:vllm|headstart):", query)), f"{title}: {query}"
        grouped = {
            name.strip() for group in re.findall(r"by \(([^)]*)\)", query) for name in group.split(",")
        }
        for name, matchers in names:
            assert name in series, f"{title}: {name} does not exist"
            asked = set(re.findall(r"(\w+)=~?", matchers))
            assert asked | grouped <= series[name] | OF_PROMETHEUS, f"{title}: {query}"
        shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert shown <= grouped | OF_PROMETHEUS, f"{title}: {legend}"


def test_whatever_the_server_counts_is_on_it(series: dict[str, set[str]]) -> None:
    asked = " ".join(query for _, query, _ in expressions())
    stems = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in series}
    missing = {stem for stem in stems if stem not in asked}
    # Queries of the cache and prompt tokens of requests tell the same.
    assert missing <= {"vllm:request_success"}, missing


def test_its_panels_lie_side_by_side_and_have_ids_of_their_own() -> None:
    everything = DASHBOARD["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        box = panel["gridPos"]
        cells = {
            (x, y) for x in range(box["x"], box["x"] + box["w"]) for y in range(box["y"], box["y"] + box["h"])
        }
        assert not cells & taken, panel["title"]
        assert box["x"] + box["w"] <= 24
        taken |= cells
