"""Law I9 with a real server and the embedded model: what its cache decided, a replay decides again."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headstart.engine.decisions import Allocate, Record, Seen
from headstart.lab.decisions.reader import LogReader
from headstart.lab.decisions.replay import Replay
from headstart.lab.replay.replay import replay
from headstart.lab.replay.scheduled import replay_scheduled
from headstart.lab.traces.decision_log import recorded_setting
from headstart.lab.traces.read import read_traces
from headstart.model.source import ModelFiles
from tests.e2e.conftest import Server, StartServer

REQUESTS, AT_ONCE, BLOCKS = 300, 16, 60


def bodies() -> list[dict[str, Any]]:
    """Questions behind system prompts, and some of them asked again; short answers."""
    rng = random.Random(9)
    tokens = lambda count: [rng.randrange(1000, 40_000) for _ in range(count)]  # noqa: E731
    systems = [tokens(rng.randint(16, 36)) for _ in range(13)]
    prompts: list[list[int]] = []
    for _ in range(REQUESTS):
        again = prompts and rng.random() < 0.2
        prompt = rng.choice(prompts[-40:]) if again else [*rng.choice(systems), *tokens(rng.randint(1, 4))]
        prompts.append(prompt)
    salts = ["a tenant", None, None, None]
    return [
        {
            "prompt": prompt,
            "max_tokens": rng.randint(1, 2),
            "ignore_eos": True,
            "cache_salt": rng.choice(salts),
        }
        for prompt in prompts
    ]


def complete(server: Server, body: dict[str, Any]) -> tuple[str, int]:
    """The answer's id, and how many tokens of its prompt were cached."""
    response = server.http.post("/v1/completions", json=body)
    response.raise_for_status()
    told = response.json()
    cached: int = told["usage"]["prompt_tokens_details"]["cached_tokens"]
    return told["id"], cached


@pytest.fixture(scope="module")
def served(
    start_server: StartServer, smollm2: ModelFiles, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, int]]:
    """The log of a run, and how many cached tokens the server told each client."""
    log = tmp_path_factory.mktemp("log") / "run.log.gz"
    with start_server(smollm2.name, "--num-blocks", str(BLOCKS), "--decision-log", str(log)) as server:
        with ThreadPoolExecutor(AT_ONCE) as clients:
            told = dict(clients.map(lambda body: complete(server, body), bodies()))
        assert server.stop() == 0
    assert len(told) == REQUESTS
    return log, told


def first_hits(records: list[Record]) -> dict[str, int]:
    """The hit with which each request was first let in, by the id that its client knows."""
    names = {one.number: one.request_id for one in records if isinstance(one, Seen)}
    found: dict[str, int] = {}
    for one in records:
        if isinstance(one, Allocate) and one.hit is not None and one.result is not None:
            found.setdefault(names[one.number].rpartition("-")[0], one.hit)
    return found


def test_every_call_is_answered_the_same_block_for_block(served: tuple[Path, dict[str, int]]) -> None:
    path, told = served
    with path.open("rb") as file:
        reader = LogReader(file, path.name)
        records = list(reader.records())
    core = Replay(reader.header.cache)
    assert [difference for record in records if (difference := core.apply(record))] == []
    core.manager.check()
    outcome = core.outcome()
    assert outcome.closed
    assert outcome.stats.requests == REQUESTS
    assert outcome.stats.hits == sum(told.values()) > 0
    assert outcome.num_evicted_blocks > BLOCKS
    assert first_hits(records) == told


def test_the_log_as_a_trace_comes_close(served: tuple[Path, dict[str, int]]) -> None:
    """The engine's steps took other times than the cost model's, so that requests met other blocks."""
    path, told = served
    with path.open("rb") as file:
        setting = recorded_setting(LogReader(file, path.name).header)
    trace = read_traces([str(path)])
    assert len(trace.requests) == REQUESTS
    assert trace.num_prompt_tokens == sum(len(body["prompt"]) for body in bodies())
    rate = sum(told.values()) / trace.num_prompt_tokens
    scheduled = replay_scheduled(trace, replace(setting, max_num_seqs=128))
    one_by_one = replay(trace, setting)
    assert scheduled.rates.token_hit_rate == pytest.approx(rate, abs=0.05)
    assert one_by_one.rates.token_hit_rate == pytest.approx(rate, abs=0.1)
    assert not any(outcome.refused for outcome in (scheduled, one_by_one))
