"""The command line of ``headstart serve``, as far as no model is loaded; tests/e2e starts real servers."""

from __future__ import annotations

import io
import json
import logging
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from msgspec.structs import replace
from rich.console import Console
from typer.testing import CliRunner, Result

from headstart.cli.command import Command
from headstart.cli.serve import _start_logging, curl_line, parse_bytes, print_banner, serve
from headstart.engine.messages import EngineInfo
from headstart.server import access_log

INFO = EngineInfo(
    model_name="my 'quoted' [red] model",
    model_type="llama",
    dtype="bfloat16",
    device="cpu",
    vocab_size=300,
    max_model_len=8192,
    num_blocks=4096,
    block_size=16,
    kv_bytes_per_token=23040,
    kv_pool_bytes=4096 * 16 * 23040,
    prefix_index="radix",
    eviction_policy="lru",
    enable_prefix_caching=True,
    max_num_batched_tokens=256,
    max_num_seqs=8,
    weights_bytes=90 * 2**20,
)


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    app.command(cls=Command)(serve)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


def test_a_port_in_use_is_told_before_the_model_is_looked_for(taken_port: int) -> None:
    result = invoke("no-such-model", "--port", str(taken_port))
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"headstart serve: cannot listen on port {taken_port}")


def test_an_unknown_model_is_one_sentence() -> None:
    result = invoke("no-such-model", "--port", "0")
    assert result.exit_code == 1
    line = result.stderr.splitlines()[-1]  # a progress display without tasks leaves an empty line
    assert line.startswith("headstart serve: there is no model 'no-such-model'")
    assert "Traceback" not in result.stderr


def test_options_that_contradict_each_other() -> None:
    result = invoke("--kv-cache-memory-bytes", "1G", "--num-gpu-blocks-override", "10")
    assert result.exit_code == 1
    assert "not both" in result.stderr


def test_a_bad_events_configuration_is_one_sentence() -> None:
    result = invoke("no-such-model", "--kv-events-config", '{"endpont": "tcp://*:5557"}')
    assert result.exit_code == 1
    assert result.stderr == (
        "headstart serve: kv_events_config: unknown option 'endpont'; did you mean 'endpoint'?\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--kv-cache-memory-bytes", "much"), "512MiB"),
        (("--prefix-index", "tree"), "radix"),
        (("--eviction-policy", "mru"), "lru"),
        (("--prefix-caching-hash-algo", "md5"), "sha256_cbor"),
        (("--dtype", "int4"), "bfloat16"),
        (("--port", "70000"), "65535"),
        (("--gpu-memory-utilization", "0.9"), "--kv-cache-memory-bytes"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(arguments: tuple[str, ...], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Value error" not in result.stderr


def test_a_model_may_be_named_as_an_option_but_once() -> None:
    alone = invoke("--model", "no-such-model", "--port", "0")
    assert "there is no model 'no-such-model'" in alone.stderr
    twice = invoke("one", "--model", "other", "--port", "0")
    assert "give the model once: 'one' or --model other" in twice.stderr


def test_a_file_that_is_no_model_is_not_said_to_be_missing(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("no model")
    result = invoke(str(tmp_path / "README.md"), "--port", "0")
    assert "README.md exists, but is no model: it is neither a GGUF file nor a directory" in result.stderr


def test_a_name_for_clients_must_be_one() -> None:
    assert "served_model_name must be a name" in invoke("--served-model-name", "").stderr


def test_help_names_every_option() -> None:
    text = invoke("--help").stdout
    for option in (
        "--host", "--port", "--served-model-name", "--dtype", "--device", "--kernels", "--max-model-len",
        "--seed",
        "--max-num-batched-tokens", "--max-num-seqs", "--kv-cache-memory-bytes", "--num-blocks",
        "--block-size", "--prefix-index", "--enable-prefix-caching", "--no-enable-prefix-caching",
        "--tenant-cache-share",
        "--estimate-hit-rates", "--no-estimate-hit-rates", "--explain-misses", "--no-explain-misses",
        "--kv-events-config", "--decision-log", "--prefix-caching-hash-algo",
        "--access-log", "--no-access-log", "--otlp-endpoint", "--max-queue",
        "--shutdown-timeout",
        "--api-key", "--api-key-file", "--isolate-by", "--isolation-secret-file", "--admin-api-key",
        "--admin-api-key-file", "--admin-port", "--admin-host",
    ):  # fmt: skip
        assert option in text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("512MiB", 512 * 2**20),
        ("512 mib", 512 * 2**20),
        ("2G", 2 * 2**30),
        ("2GB", 2 * 10**9),
        ("1.5k", 1536),
        ("7B", 7),
    ],
)
def test_sizes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "G", "-1", "1e9", "5x", "1 2", "٣"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_bytes(text)


def banner(url: str = "http://127.0.0.1:8000", *, chat: bool = True, info: EngineInfo = INFO) -> str:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    print_banner(info, url, chat=chat, console=console)
    file: Any = console.file
    text: str = file.getvalue()
    return text


def test_banner_says_what_is_served() -> None:
    text = banner()
    for words in (
        "http://127.0.0.1:8000", "my 'quoted' [red] model", "bfloat16 on cpu", "65,536 tokens", "1,440.0 MiB",
        "4,096 blocks of 16", "radix index", "lru eviction", "8,192 tokens",
    ):  # fmt: skip
        assert words in text


def test_banner_says_where_events_are() -> None:
    assert "KV events" not in banner()
    info = replace(INFO, kv_events_endpoint="tcp://0.0.0.0:5557")
    assert "KV events      tcp://0.0.0.0:5557\n" in banner(info=info)
    text = banner(info=replace(info, kv_events_replay_endpoint="tcp://0.0.0.0:5558"))
    assert "tcp://0.0.0.0:5557, replayed at tcp://0.0.0.0:5558" in " ".join(text.split())


def test_a_long_name_is_shown_whole() -> None:
    name = "organisation/" + "a-very-long-name-" * 8
    assert name in banner(info=replace(INFO, model_name=name))


def test_banner_says_where_tokens_go() -> None:
    assert "token ids" not in banner()
    text = banner(info=replace(INFO, decision_log="/a/long/path" * 9 + "/[bold]/run.log"))
    assert "prompts and answers go to " + "/a/long/path" * 9 + "/[bold]/run.log\n" in text


@pytest.mark.parametrize(
    ("url", "chat", "expected"),
    [
        ("http://127.0.0.1:8000", True, "http://127.0.0.1:8000/v1/chat/completions"),
        ("http://0.0.0.0:80", True, "http://localhost:80/v1/chat/completions"),
        ("http://[::]:80", False, "http://localhost:80/v1/completions"),
    ],
)
def test_the_curl_line_survives_narrow_terminals_and_quotes(url: str, chat: bool, expected: str) -> None:
    line = banner(url, chat=chat).splitlines()[-1]
    curl, address, _, header, _, body = shlex.split(line)
    assert (curl, address, header) == ("curl", expected, "Content-Type: application/json")
    asked = json.loads(body)
    assert asked["model"] == "my 'quoted' [red] model"
    assert ("messages" in asked) == chat


def test_the_curl_line_takes_the_key_from_the_shell() -> None:
    line = curl_line("m", "http://127.0.0.1:1", chat=True, key=True)
    assert ' -H "Authorization: Bearer $HEADSTART_API_KEY" ' in line


@pytest.mark.parametrize("asked", [False, True])
def test_requests_are_logged_if_asked(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log.logger, "level", logging.NOTSET)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    _start_logging(requests=asked)
    assert access_log.logger.isEnabledFor(logging.INFO) == asked
    access_log.logger._cache.clear()  # what it found out while the root's level was another
