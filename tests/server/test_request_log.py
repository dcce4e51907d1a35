from __future__ import annotations

import logging
from typing import Any

import pytest
from starlette.testclient import TestClient

from headstart.cache import MissReason, MissReport
from headstart.server.request_log import line_of

REPORT = MissReport(
    "cmpl-1a-0",
    812,
    600,
    {MissReason.LAST_TOKEN: 1, MissReason.EVICTED: 40, MissReason.DIVERGED: 171},
    diverged_at=640,
    evicted_s=12.34,
    evicted_blocks=70,
)


def test_a_line_tells_all_of_a_report() -> None:
    assert line_of(REPORT) == (
        "cmpl-1a-0: 812 prompt tokens, 600 hit, 171 diverged, 40 evicted, 1 last_token; "
        "first difference at token 640; evicted 12.3 s and 70 taken blocks ago"
    )
    assert line_of(MissReport("a", 3, 0, {MissReason.SKIPPED: 3})) == "a: 3 prompt tokens, 0 hit, 3 skipped"


def test_it_is_logged_at_info(client: TestClient, engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        engine.explain(REPORT)
    assert caplog.records == []
    with caplog.at_level(logging.INFO):
        engine.explain(REPORT)
    (record,) = caplog.records
    assert (record.levelname, record.name) == ("INFO", "headstart.server.request_log")
    assert record.getMessage() == line_of(REPORT)
