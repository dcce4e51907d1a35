"""Opt-outs, retention, warming and explaining, with a real server, a tiny model and a small pool."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headstart.engine.decisions import RetainCall, Seen
from headstart.lab.decisions.reader import LogReader
from tests.e2e.conftest import Server, StartServer, wait_until

TEXT = "The server keeps the keys and the values of every block of tokens until the memory is wanted. "
OPTIONS = ("--dtype", "float32", "--num-blocks", "60", "--max-model-len", "900")


@pytest.fixture(scope="module")
def server(start_server: StartServer, long_tiny_dir: Path) -> Iterator[Server]:
    """Of its 60 blocks 30 can be retained."""
    with start_server(str(long_tiny_dir), *OPTIONS) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.stderr.read_text()


def post(server: Server, path: str, **body: Any) -> dict[str, Any]:
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def complete(server: Server, prompt: str | list[int], **body: Any) -> dict[str, Any]:
    return post(server, "/v1/completions", prompt=prompt, temperature=0, **{"max_tokens": 4} | body)


def cached(reply: dict[str, Any]) -> int:
    count: int = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def explained(server: Server, request_id: str) -> dict[str, Any]:
    """Once its report is there."""

    def ask() -> dict[str, Any]:
        return post(server, "/v1/cache/explain", request_id=request_id)

    wait_until(lambda: ask()["status"] == "complete")
    return ask()


def flood(server: Server, first: int) -> None:
    """More than the pool holds, nothing like anything else."""
    for number in range(first, first + 5):
        complete(server, [number] * 300, max_tokens=1)


def test_who_writes_nothing_leaves_the_next_one_cold_and_others_their_hits(server: Server) -> None:
    prompt = "silent " + TEXT
    told = complete(server, prompt, skip_writing_prefix_cache=True)
    assert cached(complete(server, prompt, skip_writing_prefix_cache=True)) == 0
    cold = complete(server, prompt)
    assert cached(cold) == 0
    report = explained(server, cold["id"])["prompts"][0]
    assert {one["reason"] for one in report["reasons"]} == {"cold", "last_token"}
    again = complete(server, prompt, skip_writing_prefix_cache=True)
    assert cached(again) == again["usage"]["prompt_tokens"] - 1 == cached(complete(server, prompt))
    assert [reply["choices"][0]["text"] for reply in (told, cold, again)] == [told["choices"][0]["text"]] * 3


def test_who_reads_nothing_is_computed_and_found(server: Server) -> None:
    prompt = "deaf " + TEXT
    complete(server, prompt)
    blind = complete(server, prompt, skip_reading_prefix_cache=True)
    assert cached(blind) == 0
    (reason,) = explained(server, blind["id"])["prompts"][0]["reasons"]
    assert (reason["reason"], reason["tokens"]) == ("skipped", blind["usage"]["prompt_tokens"])
    assert cached(complete(server, prompt)) == blind["usage"]["prompt_tokens"] - 1


@pytest.mark.parametrize("salt", [None, "tom"])
def test_a_warmed_conversation_hits_all_of_what_was_warmed(server: Server, salt: str | None) -> None:
    said = [{"role": "system", "content": TEXT}, {"role": "user", "content": "Go on"}]
    reply = post(server, "/v1/cache/warm", messages=said, cache_salt=salt)
    assert reply["cached_tokens"] in (0, reply["prompt_tokens"] - 1)
    assert reply["computed_tokens"] + reply["cached_tokens"] == reply["prompt_tokens"]
    further = {"role": "user", "content": "and on"}
    answer = {"role": "assistant", "content": "it goes"}
    for messages in ([*said, further], [*said, answer, further], said):
        chat = post(server, "/v1/chat/completions", messages=messages, max_tokens=1, cache_salt=salt)
        assert cached(chat) >= reply["kept_tokens"] == reply["prompt_tokens"]
    other = post(server, "/v1/chat/completions", messages=said, max_tokens=1, cache_salt=f"not {salt}")
    assert cached(other) == 0
    assert post(server, "/v1/cache/warm", messages=said, cache_salt=salt)["computed_tokens"] == 1


def test_what_is_retained_outlives_a_flood_and_what_is_not_does_not(server: Server) -> None:
    kept, lost = "kept " + TEXT, "lost " + TEXT
    complete(server, lost)
    complete(server, kept, prompt_cache_key="chat-1", prompt_cache_retention="24h")
    warm = post(server, "/v1/cache/warm", prompt="warmed " + TEXT * 2, ttl_seconds=600)
    assert 0 < warm["retained_tokens"] <= warm["prompt_tokens"]
    assert warm["retained_until"] > warm["created"]
    flood(server, 100)
    assert cached(complete(server, kept)) >= 16
    assert cached(complete(server, "warmed " + TEXT * 2)) >= warm["retained_tokens"]
    missed = complete(server, lost)
    assert cached(missed) == 0
    report = explained(server, missed["id"])["prompts"][0]
    assert {one["reason"] for one in report["reasons"]} == {"evicted", "last_token"}
    assert report["evicted_s"] >= 0


def test_a_client_that_hints_at_everything_takes_half_of_the_pool_and_no_more(server: Server) -> None:
    for number in range(200, 210):
        complete(server, [number] * 100, prompt_cache_retention="24h", max_tokens=1)
    others = "others " + TEXT
    complete(server, others)
    complete(server, [300] * 150, max_tokens=1)  # fits in the other half
    assert cached(complete(server, others)) > 0


def test_a_live_request_is_explained_on_the_command_line(server: Server) -> None:
    complete(server, "a beginning, " + TEXT * 3)
    name = complete(server, "another one, " + TEXT * 3)["id"]
    report = explained(server, name)["prompts"][0]
    command = [sys.executable, "-m", "headstart", "explain", "--live", server.url, name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{report['prompt_tokens']:,} prompt tokens" in done.stdout
    assert "diverged" in done.stdout
    assert f"The first difference is at token {report['first_difference_at']}." in done.stdout
    whole = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(whole.stdout)[0]["prompts"] == [report]
    gone = subprocess.run([*command[:-1], "cmpl-0"], capture_output=True, text=True, check=False)
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "none of your requests" in gone.stderr


def test_whoever_leaves_while_it_warms_frees_its_blocks(server: Server) -> None:
    with pytest.raises(httpx.ReadTimeout):
        server.http.post("/v1/cache/warm", json={"prompt": [7] * 890}, timeout=0.001)
    server.until_idle()
    assert cached(complete(server, "still here")) == 0


def test_hints_and_opt_outs_are_in_the_decision_log_which_is_replayed_alike(
    start_server: StartServer, long_tiny_dir: Path, tmp_path: Path
) -> None:
    log = tmp_path / "run.log.gz"
    with start_server(str(long_tiny_dir), *OPTIONS, "--decision-log", str(log)) as server:
        for number in range(6):
            complete(server, [100 + number] * 100, skip_writing_prefix_cache=number % 2 == 1)
            complete(server, [200 + number] * 100, prompt_cache_key=f"secret-{number % 2}")
            post(server, "/v1/cache/warm", prompt=[300 + number] * 100)
        assert server.stop() == 0
    with log.open("rb") as file:
        records = list(LogReader(file, "log").records())
    assert sum(isinstance(one, Seen) and one.skip_writing for one in records) == 3
    names = [one.name for one in records if isinstance(one, RetainCall)]
    assert len(names) == 12
    assert len({name for name in names if name is not None}) == 2
    assert not any("secret" in name for name in names if name is not None)
    command = [sys.executable, "-m", "headstart", "verify-log", "--check", str(log)]
    subprocess.run(command, capture_output=True, check=True)
