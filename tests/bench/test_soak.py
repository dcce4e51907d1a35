"""A short form of the soak: everything at once, one kill of the engine, and nothing left behind."""

from __future__ import annotations

import os
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench.soak import read_log, soaked
from bench.soaking.crowd import answer_of, is_whole
from bench.soaking.findings import MAX_FAULTS, Findings
from bench.soaking.watching import Outages, descriptors


@pytest.mark.timeout(600)
def test_everything_at_once_leaves_nothing_behind(tiny_llama_dir: Path) -> None:
    found = Findings(minutes=0.25, visitors=24, tenants=3)
    passed: list[float] = []
    soaked(str(tiny_llama_dir), found, kills=1, seed=11, told=passed.append)
    assert found.faults == []
    assert found.kills == 1
    assert found.statuses[200] >= 50
    assert {400, 401, 429, 503} <= found.statuses.keys()
    assert found.twins >= 20
    assert found.twins_with_hits >= 5
    assert passed[-1] > 14
    assert "No fault." in found.markdown("a tiny model", datetime(2026, 12, 1, tzinfo=UTC))


def test_faults_are_noted_and_told() -> None:
    found = Findings(minutes=1, visitors=1, tenants=1)
    found.memory_mib = (100.0, 110.0)
    found.demand(True, "is well")
    for number in range(MAX_FAULTS + 5):
        found.demand(False, f"fault {number}")
    assert len(found.faults) == MAX_FAULTS
    assert found.growth == pytest.approx(0.1)
    text = found.markdown("a tiny model", datetime(2026, 12, 1, tzinfo=UTC))
    assert f"{MAX_FAULTS} FAULTS" in text
    assert "+10.0%" in text


def test_the_log_may_tell_of_kills_alone() -> None:
    found = Findings(minutes=1, visitors=1, tenants=1)
    read_log("ERROR headstart.engine.supervisor: the engine was killed by signal 9; …\nWARNING x", found)
    assert found.faults == []
    read_log("ERROR x: a stream failed\nTraceback (most recent call last):", found)
    assert found.faults == ["2 errors in the log, the first: ['ERROR x: a stream failed']"]


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/v1/chat/completions", "data: [DONE]\n\n"),
        ("/v1/messages", 'event: message_stop\ndata: {"type":"message_stop"}\n\n'),
        ("/v1/responses", "event: response.incomplete\ndata: {}\n\n"),
    ],
)
def test_a_stream_that_was_cut_is_not_whole(path: str, end: str) -> None:
    assert is_whole(path, "data: {}\n\n" + end)
    assert not is_whole(path, "data: {}\n\n")
    assert not is_whole(path, end + 'data: {"error": {"message": "the engine is gone"}}\n\n')


def test_answers_are_read_whole_and_streamed() -> None:
    usage = '"usage": {"prompt_tokens_details": {"cached_tokens": 3}}'
    assert answer_of('{"choices": [{"message": {"content": "a b"}}], ' + usage + "}") == ("a b", 3)
    assert answer_of('{"choices": [{"text": "a b"}], ' + usage + "}") == ("a b", 3)
    parts = ['{"choices": [{"delta": {"content": "a"}}]}', '{"choices": [{"delta": {"content": " b"}}]}']
    events = [*parts, '{"choices": [], ' + usage + "}", "[DONE]"]
    assert answer_of("".join(f"data: {event}\n\n" for event in events)) == ("a b", 3)


def test_an_outage_excuses_whoever_met_it() -> None:
    outages = Outages()
    begun = time.monotonic()
    assert not outages.excuse(begun)
    outages.begin()
    assert outages.excuse(time.monotonic())
    outages.end()
    assert outages.excuse(begun)
    assert not outages.excuse(time.monotonic() + 1)


def test_a_file_left_open_is_seen(tmp_path: Path) -> None:
    before = descriptors(os.getpid())
    with (tmp_path / "left open").open("w"):
        assert descriptors(os.getpid()) - before == Counter({str(tmp_path / "left open"): 1})
