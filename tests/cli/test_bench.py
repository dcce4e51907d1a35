import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from headstart.cli.bench import bench
from headstart.lab.load.local import running_server, serve_command
from tests.fake_openai import FakeServer, serving


def run(*options: object) -> Result:
    app = typer.Typer()
    app.command()(bench)
    return CliRunner().invoke(app, [str(option) for option in options], env={"COLUMNS": "80", "TERM": "dumb"})


def run_json(fake: FakeServer, *options: object) -> dict[str, Any]:
    with serving(fake) as base_url:
        result = run("--base-url", base_url, "--json", *options)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_first_token_as_a_table() -> None:
    with serving(FakeServer()) as base_url:
        result = run("--base-url", base_url, "--repeats", 2, "--seed", 5)
    assert result.exit_code == 0, result.stderr
    rows = [line.split() for line in result.stdout.replace("│", " ").splitlines()]
    (cold,) = (row for row in rows if row[:1] == ["cold"])
    (warm,) = (row for row in rows if row[:1] == ["warm"])
    assert cold[-2:] == ["1,211", "0"]
    assert warm[-2:] == ["1,211", "1,200"]
    assert "warm / cold: " in result.stdout
    assert "seed 5" in result.stdout
    assert result.stderr == "", "no progress bar where there is no terminal, and nothing to warn of"


def test_first_token_as_json() -> None:
    fake = FakeServer()
    report = run_json(fake, "--repeats", 3, "--prompt-tokens", 50, "--seed", 7, "--vocab-range", "10:90")
    assert report["setup"]["scenario"] == "first-token"
    assert report["setup"]["model"] == "fake-1"
    assert report["setup"]["seed"] == 7
    assert report["setup"]["workload"] == {
        "prompt_tokens": 50,
        "shared_tokens": 39,
        "output_tokens": 1,
        "concurrency": 1,
        "repeats": 3,
    }
    assert report["groups"]["cold"]["requests"] == report["groups"]["warm"]["requests"] == 3
    assert report["groups"]["cold"]["cached_tokens"]["maximum"] == 0
    assert report["groups"]["warm"]["cached_tokens"]["minimum"] == 39
    assert report["warm_over_cold"] > 0
    assert report["warnings"] == []
    assert len(report["rounds"]) == len(fake.received) == 8
    assert {token in range(10, 90) for body in fake.received for token in body["prompt"]} == {True}


def test_decode() -> None:
    fake = FakeServer()
    report = run_json(fake, "--scenario", "decode", "--concurrency", 3, "--output-tokens", 5, "--repeats", 2)
    group = report["groups"]["decode"]
    assert (group["rounds"], group["requests"], group["output_tokens"]["median"]) == (2, 6, 5)
    assert group["stream_tokens_per_second"]["median"] > 0
    assert report["setup"]["workload"]["shared_tokens"] == 0
    assert report["warm_over_cold"] is None
    assert {body["max_tokens"] for body in fake.received} == {5}


def test_decode_behind_a_prefix() -> None:
    fake = FakeServer()
    options = ("--streams", 3, "--shared-tokens", 1200, "--output-tokens", 5, "--repeats", 2, "--ignore-eos")
    report = run_json(fake, "--scenario", "decode", *options)
    group = report["groups"]["warm"]
    assert (group["rounds"], group["requests"]) == (2, 6)
    assert group["cached_tokens"]["minimum"] == 1200
    assert {body["ignore_eos"] for body in fake.received} == {True}


def test_unshared() -> None:
    fake = FakeServer()
    report = run_json(fake, "--scenario", "unshared", "--repeats", 1)
    group = report["groups"]["unshared"]
    assert (group["requests"], group["output_tokens"]["median"]) == (8, 64)
    assert group["cached_tokens"]["maximum"] == 0
    assert group["seconds"]["median"] > 0
    assert not any("ignore_eos" in body for body in fake.received), "OpenAI's own servers refuse it"


def test_shared_prefix() -> None:
    report = run_json(FakeServer(), "--scenario", "shared-prefix", "--concurrency", 3, "--repeats", 2)
    assert report["groups"]["warm"]["requests"] == 6
    assert report["groups"]["warm"]["cached_tokens"]["minimum"] == 1200
    assert report["groups"]["warm"]["output_tokens"]["median"] == 64


def test_the_same_seed_asks_the_same_and_none_asks_anew() -> None:
    def prompts(*options: object) -> list[list[int]]:
        fake = FakeServer()
        run_json(fake, "--repeats", 1, "--prompt-tokens", 20, *options)
        return [body["prompt"] for body in fake.received]

    assert prompts("--seed", 3) == prompts("--seed", 3) != prompts("--seed", 4)
    assert prompts() != prompts()


def test_a_model_may_be_named() -> None:
    fake = FakeServer()
    report = run_json(fake, "--repeats", 1, "--model", "other", "--api-key", "k")
    assert report["setup"]["model"] == "other"
    assert {body["model"] for body in fake.received} == {"other"}
    assert {headers["authorization"] for headers in fake.headers} == {"Bearer k"}


@pytest.mark.parametrize(
    ("fake", "warning"),
    [
        (FakeServer(adds_bos=True), "counts 1,212 prompt tokens where 1,211 were sent"),
        (FakeServer(caches=False), "found nothing of the warm prompts"),
        (FakeServer(stops_after=2), "4 of 4 streams ended before the 8 tokens asked for"),
    ],
    ids=["adds a token", "does not cache", "stops early"],
)
def test_warnings(fake: FakeServer, warning: str) -> None:
    options = ("--repeats", 2, "--output-tokens", 8)
    assert any(warning in sentence for sentence in run_json(fake, *options)["warnings"])
    with serving(fake) as base_url:
        result = run("--base-url", base_url, *options)
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: ")
    assert warning in result.stderr


def test_a_server_that_says_nothing_of_its_cache() -> None:
    with serving(FakeServer(usage="uncounted")) as base_url:
        result = run("--base-url", base_url, "--repeats", 1)
    assert "n/a" in result.stdout
    assert result.stderr == ""


def test_a_seed_used_before() -> None:
    options = ("--repeats", 1, "--seed", 9, "--json")
    with serving(FakeServer()) as base_url:
        first, second = (run("--base-url", base_url, *options) for _ in range(2))
    assert json.loads(first.stdout)["warnings"] == []
    assert "a cold prompt in its cache" in json.loads(second.stdout)["warnings"][0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--repeats", 0], "repeats must be at least 1, not 0"),
        (
            ["--shared-tokens", 1211],
            "shared_tokens must be at least 0 and below prompt_tokens (1211), not 1211",
        ),
        (["--vocab-range", "9"], "a vocabulary range is LOW:HIGH with LOW below HIGH"),
        (
            ["--vocab-range", "1:3"],
            "a vocabulary range of 2 ids has too few first tokens for this many prompts",
        ),
        (["--base-url", "localhost"], "a base URL looks like http://127.0.0.1:8000, not 'localhost'"),
        (["--concurrency", 2], "first-token sends one request at a time: leave --concurrency out"),
        (["--scenario", "unshared", "--shared-tokens", 2], "share nothing: leave --shared-tokens out"),
    ],
)
def test_options_that_make_no_sense(options: list[object], said: str) -> None:
    with serving(FakeServer()) as base_url:
        result = run("--base-url", base_url, *options)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("headstart bench: ")
    assert said in result.stderr


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        result = run("--base-url", url, "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"headstart bench: cannot reach {url}: is a server running there?\n"


def test_a_server_that_refuses() -> None:
    with serving(FakeServer(failure=(400, {"error": {"message": "the prompt is too long"}}))) as base_url:
        result = run("--base-url", base_url)
    assert result.exit_code == 1
    assert result.stderr == "headstart bench: the server answered 400: the prompt is too long\n"


@pytest.fixture(scope="module")
def real_server(tiny_llama_dir: Path) -> Iterator[str]:
    with running_server(serve_command(str(tiny_llama_dir), "--num-blocks", "256")) as base_url:
        yield base_url


@pytest.mark.parametrize(
    ("scenario", "kinds"),
    [
        ("first-token", ["cold", "warm"]),
        ("decode", ["decode"]),
        ("shared-prefix", ["cold", "warm"]),
        ("unshared", ["unshared"]),
    ],
)
def test_a_real_server(real_server: str, scenario: str, kinds: list[str]) -> None:
    options = ("--prompt-tokens", 100, "--output-tokens", 4, "--repeats", 2, "--vocab-range", "3:512")
    result = run("--base-url", real_server, "--scenario", scenario, "--json", *options)
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert list(report["groups"]) == kinds
    assert {group["prompt_tokens"]["median"] for group in report["groups"].values()} == {100}
    if "warm" in kinds:
        cached = report["groups"]["warm"]["cached_tokens"]
        assert (cached["minimum"], cached["maximum"]) == (89, 89)
    # A random model ends early and writes half characters, which is doubted rightly; its prompts are not.
    assert not [warning for warning in report["warnings"] if "prompt" in warning]


def test_no_torch() -> None:
    code = "import sys, headstart.cli.bench, headstart.cli.demo; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
