"""Where keys come from, what the process list shows of them, and what people are told."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headstart.cli import app
from headstart.cli.access import access_rows, hide_keys, keys_of, warn_if_open
from headstart.config import NO_KEYS, SECRET_VARIABLES, KeysConfig, ServerConfig
from headstart.server.listen import bind

VARIABLE = "HEADSTART_API_KEY"
KEYS = KeysConfig(("k",))


def refusal(*arguments: str, **environment: str | None) -> str:
    """Why this is not started."""
    result: Result = CliRunner().invoke(app, ["serve", "no-such-model", *arguments], env=environment)
    assert result.exit_code == 1
    assert result.stdout == ""
    return " ".join(result.stderr.split())


def test_keys_of_options_or_else_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert keys_of(VARIABLE, None, None) == NO_KEYS
    monkeypatch.setenv(VARIABLE, " one  two ")
    assert keys_of(VARIABLE, [], None).given == ("one", "two")
    assert keys_of(VARIABLE, ["three"], None).given == ("three",)
    assert keys_of(VARIABLE, None, "file") == KeysConfig((), "file")


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_variable_does_not_open_the_server(empty: str) -> None:
    assert "HEADSTART_API_KEY is set, but empty" in refusal(HEADSTART_API_KEY=empty)
    assert "HEADSTART_ADMIN_API_KEY is set, but empty" in refusal(HEADSTART_ADMIN_API_KEY=empty)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--isolate-by", "api-key"), "isolate_by api-key needs API keys"),
        (("--isolate-by", "tenant"), "isolate_by must be none, api-key or header:NAME"),
        (("--api-key", "bad canary"), "an API key must be 1 to 1024 visible ASCII characters"),
        (("--api-key", ""), "an API key must be 1 to 1024 visible ASCII characters"),
        (("--api-key-file", "/nowhere/keys"), "--api-key-file /nowhere/keys cannot be read: No such file"),
        (("--admin-api-key-file", "/nowhere/keys"), "--admin-api-key-file /nowhere/keys cannot be read"),
        (("--isolation-secret-file", "x"), "isolation_secret_file is of no use with isolate_by none"),
        (("--admin-host", "127.0.0.1"), "--admin-host is for --admin-port"),
        (
            ("--isolate-by", "header:x", "--prefix-caching-hash-algo", "xxhash_cbor"),
            "prefix_caching_hash_algo xxhash_cbor has none: use sha256_cbor or sha256",
        ),
    ],
)
def test_what_makes_no_sense_is_one_sentence_before_anything_starts(
    arguments: tuple[str, ...], sentence: str
) -> None:
    told = refusal(*arguments, **dict.fromkeys(SECRET_VARIABLES))
    assert told.startswith("headstart serve: ")
    assert sentence in told
    assert "canary" not in told


def test_an_admin_port_in_use_is_called_by_its_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refusal("--port", "0", "--admin-port", str(port))
    assert told.endswith("choose another --admin-port (0 takes any free one)")


def test_one_port_of_two_addresses_would_let_everybody_in_as_an_operator() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    told = refusal("--port", port, "--host", "127.0.0.1", "--admin-port", port, "--admin-host", "127.0.0.2")
    assert (
        told == f"headstart serve: --port and --admin-port must differ, whatever their hosts; both are {port}"
    )


SHOWS_ITSELF = """
import json, os, subprocess, sys
from headstart.cli.access import hide_keys
hide_keys(["a=canary", "canary"])
def shown(name): return open(f"/proc/self/{name}").read().split("\\0")
print(json.dumps({
    "arguments": shown("cmdline")[-8:-1], "variables": shown("environ"), "read": sys.argv[1:],
    "plain": os.environ["PLAIN"], "inherited": subprocess.check_output(["env"], text=True).splitlines(),
}))
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux says where arguments are")
def test_keys_leave_the_process_list_and_are_not_inherited() -> None:
    arguments = ["--api-key", "canary", "--api-key=canary", "--api-key=a=canary", "no-canary", "--x", "o"]
    environment = os.environ | {VARIABLE: "one-canary two-canary", "PLAIN": "canary", "ANOTHER": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SHOWS_ITSELF, *arguments],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    seen = json.loads(done.stdout)
    assert seen["arguments"] == [
        "--api-key", "xxxxxx", "--api-key=xxxxxx", "--api-key=xxxxxxxx", "no-canary", "--x", "o"
    ]  # fmt: skip
    assert {f"{VARIABLE}={'x' * 21}", "PLAIN=canary", "ANOTHER=1"} <= set(seen["variables"])
    assert (seen["read"], seen["plain"]) == (arguments, "canary")  # what Python has read stays as it is
    assert not [line for line in seen["inherited"] if line.startswith(VARIABLE)]
    assert "the process list while the server starts" in done.stderr
    assert "canary" not in done.stderr


def test_keys_of_the_environment_need_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "canary")
    monkeypatch.setattr("headstart.cli.access.blot_out", lambda *_: True)  # this process is pytest's
    hide_keys([])
    assert VARIABLE not in os.environ
    assert caplog.records == []


@pytest.mark.parametrize(
    ("host", "server", "warned"),
    [
        ("0.0.0.0", ServerConfig(), True),
        ("127.0.0.1", ServerConfig(), False),
        ("0.0.0.0", ServerConfig(api_keys=KEYS), False),
        ("0.0.0.0", ServerConfig(isolate_by="header:x"), True),
    ],
)
def test_a_server_open_to_all_is_told(
    host: str, server: ServerConfig, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with bind(host, 0) as sock:
        warn_if_open(sock, server)
    assert [record.getMessage().split(" port")[0] for record in caplog.records] == (
        ["whoever reaches"] if warned else []
    )


@pytest.mark.parametrize(
    ("server", "admin_url", "words"),
    [
        (ServerConfig(), None, ("none: whoever reaches", "none: all share", "at the address above")),
        (ServerConfig(api_keys=KEYS), None, ("asked for", "none: all share", "at the address above")),
        (
            ServerConfig(api_keys=KEYS, isolate_by="api-key"),
            None,
            ("asked for", "by API key", "are closed: see --admin-api-key-file, --admin-port"),
        ),
        (
            ServerConfig(isolate_by="header:X-Team", has_admin_port=True),
            "http://127.0.0.1:9",
            ("none: whoever", "by the header x-team", "at http://127.0.0.1:9"),
        ),
        (
            ServerConfig(isolate_by="header:X-Team", admin_api_keys=KEYS),
            None,
            ("none: whoever", "by the header x-team", "at the address above, with an admin key"),
        ),
    ],
)
def test_the_banner_says_who_may_ask_and_who_shares(
    server: ServerConfig, admin_url: str | None, words: tuple[str, str, str]
) -> None:
    rows = access_rows(server, admin_url)
    assert list(rows) == ["API keys", "isolation", "operators"]
    for row, part in zip(rows.values(), words, strict=True):
        assert part in row
