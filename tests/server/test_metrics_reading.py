"""What ``headstart metrics`` makes of this very server's page."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from headstart.cache import MissReason
from headstart.lab.metrics import Engine, Exposition, State, Window, readings
from tests.server.conftest import FakeEngine, replace_stats


def test_the_servers_own_page_is_read(client: TestClient, engine: FakeEngine) -> None:
    def complete(prompt: str) -> None:
        body = {"model": "fake/model", "prompt": prompt}
        assert client.post("/v1/completions", json=body).status_code == 200

    def page() -> Exposition:
        return Exposition.parse(client.get("/metrics").text, "the page")

    complete("an earlier prompt")
    before = page()
    complete("hello, world")
    complete("hello, world")
    engine.stats = replace_stats(
        engine.stats,
        kv_cache_usage=0.5,
        num_running=3,
        miss_tokens={MissReason.COLD: 11, MissReason.LAST_TOKEN: 2},
        hit_rate_estimates={"1x": 0.25, "2x": 0.75},
        num_evicted_blocks=4,
    )
    (one,) = readings(Window("the page", Engine.HEADSTART, before, page(), seconds=2.0))
    assert one.model == "fake/model"
    assert (one.query_tokens, one.hit_tokens) == (24, 11)
    assert one.token_hit_rate == pytest.approx(11 / 24)
    assert one.state is State.NOTHING_SHARED
    assert (one.kv_usage_before, one.kv_usage_after) == (0.0, 0.5)
    assert (one.running, one.waiting, one.preemptions, one.requests) == (3, 0, 0, 2)
    assert one.misses == {"cold": 11, "last_token": 2}
    assert one.estimates == {"1x": 0.25, "2x": 0.75}
    assert one.evicted == 4
    assert one.first_token_s is not None
