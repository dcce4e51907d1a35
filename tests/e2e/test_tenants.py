"""Keys and isolation of a real server: who shares with whom, and that no secret is ever told."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest
import zmq

from headstart.server.caller import derived
from tests.e2e.conftest import PATIENCE, Server, StartServer

SECRET = bytes(range(32))
ONE, TWO, ADMIN = "canary-key-of-one", "canary-key-of-two", "canary-key-of-admins"
PROMPT = list(range(100, 150))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    (directory / "keys").write_text(f"{ONE}\n{TWO}\n")
    (directory / "secret").write_bytes(SECRET)
    (directory / "secret").chmod(0o600)
    return directory


@pytest.fixture(scope="module")
def server(
    start_server: StartServer, long_tiny_dir: Path, files: Path, monkeypatch_module: pytest.MonkeyPatch
) -> Iterator[Server]:
    """By API key, with operators at a port of their own, KV events and a log of requests."""
    monkeypatch_module.setenv("HEADSTART_ADMIN_API_KEY", ADMIN)
    events = {
        "enable_kv_cache_events": True,
        "endpoint": f"ipc://{files}/pub",
        "replay_endpoint": f"ipc://{files}/again",
    }
    options = (
        *("--dtype", "float32", "--num-blocks", "1000", "--enable-log-requests", "--admin-port", "0"),
        *("--api-key-file", str(files / "keys"), "--api-key", "canary-typed-key", "--isolate-by", "api-key"),
        *("--isolation-secret-file", str(files / "secret"), "--kv-events-config", json.dumps(events)),
    )
    with start_server(str(long_tiny_dir), *options) as server:
        yield server
        assert server.stop() == 0


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patched:
        yield patched


@pytest.fixture(scope="module")
def admin(server: Server) -> Iterator[httpx.Client]:
    """HTTP to the operators' port."""
    url = server.banner.split("/reset_prefix_cache at ")[1].split(",")[0]
    assert url != server.url
    with httpx.Client(base_url=url, headers={"x-api-key": ADMIN}, timeout=PATIENCE) as http:
        yield http


def ask(server: Server, key: str, prompt: Any = PROMPT, **fields: Any) -> httpx.Response:
    body = {"prompt": prompt, "max_tokens": 2, "ignore_eos": True, "temperature": 0} | fields
    headers = {"Authorization": f"Bearer {key}".encode()}
    return server.http.post("/v1/completions", json=body, headers=headers)


def cached(response: httpx.Response) -> int:
    response.raise_for_status()
    tokens: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def test_one_key_hits_and_the_other_misses(server: Server, admin: httpx.Client) -> None:
    first, again = ask(server, ONE), ask(server, ONE)
    assert (cached(first), cached(again)) == (0, len(PROMPT) - 1)
    other = ask(server, TWO)
    assert cached(other) == 0
    texts = {response.json()["choices"][0]["text"] for response in (first, again, other)}
    assert len(texts) == 1
    assert cached(ask(server, TWO)) == len(PROMPT) - 1
    assert cached(ask(server, ADMIN)) == 0
    # Operators see what the prompt missed for; nobody else does.
    assert server.http.get("/metrics", headers={"x-api-key": ONE}).status_code == 404
    assert admin.get("/metrics", headers={"x-api-key": ONE}).status_code == 401
    assert admin.post("/reset_prefix_cache").json() == {"success": True}
    assert cached(ask(server, ONE)) == 0


def test_events_tell_derived_salts(server: Server, files: Path) -> None:
    ask(server, ONE, list(range(200, 240)), cache_salt="canary-salt-of-a-client").raise_for_status()
    tenant = derived(SECRET, b"tenant", b"api-key", _sha256(ONE))
    salt = derived(tenant, b"salt", b"canary-salt-of-a-client").hex()
    batches = _replayed(f"ipc://{files}/again")
    assert salt.encode() in b"".join(batches)
    assert b"canary" not in b"".join(batches)
    assert all(msgspec.msgpack.decode(batch) for batch in batches)


def test_no_secret_is_told_anywhere(server: Server, admin: httpx.Client, files: Path) -> None:
    told = [
        # What is good, and what is refused for its key, its salt or other fields.
        ask(server, ONE, "canary-prompt", cache_salt="canary-salt"),
        ask(server, "canary-wrong-key", "canary-prompt", cache_salt="canary-salt"),
        ask(server, "canary-wrong-key\u00e9", "canary-prompt"),
        server.http.post("/v1/completions", json={"prompt": "canary-prompt"}),
        server.http.get(
            "/v1/canary-path", headers={"x-api-key": "canary-a", "authorization": "Bearer canary-b"}
        ),
        ask(server, ONE, "canary-prompt", cache_salt="canary@salt"),
        ask(server, ONE, "canary-prompt", cache_salt=["canary-salt"]),
        ask(server, ONE, "canary-prompt", cache_salt="canary-salt" * 20),
        ask(server, ONE, "canary-prompt" * 50_000),
        ask(server, ONE, [10**9], cache_salt="canary-salt"),
        ask(server, ONE, "canary-prompt", stream=True, cache_salt="canary-salt"),
        admin.get("/metrics"),
        admin.get("/metrics", headers={"x-api-key": "canary-wrong-key"}),
        server.http.get("/openapi.json"),
    ]
    statuses = [response.status_code for response in told]
    assert statuses == [200, 401, 401, 401, 401, 400, 400, 400, 400, 400, 200, 200, 401, 200]
    # A prompt that is quoted in a refusal goes to who sent it, and to nobody else: such go apart.
    quoted = [
        ask(server, ONE, {"canary": "prompt"}),
        ask(server, ONE, "canary-prompt", model="canary-model"),
        ask(server, ONE, "canary-prompt", temperature="canary-number"),
    ]
    assert [response.status_code for response in quoted] == [400, 404, 400]
    # Its file is rewritten with a key that is none; the old keys hold, and a line of the log says so.
    (files / "keys").write_text(f"{ONE}\n{TWO}\ncanary and more\n")
    assert ask(server, TWO).status_code == 200
    (files / "keys").write_text(f"{ONE}\n")
    assert ask(server, TWO).status_code == 401
    assert ask(server, ONE).status_code == 200

    (files / "keys").write_text(f"{ONE}\n{TWO}\n")
    log = server.stderr.read_text()
    everything = [server.banner, log, *(response.text for response in told)]
    everything += [str(response.headers) for response in (*told, *quoted)]
    for process in (psutil.Process(server.process.pid), server.engine):
        everything += [
            (Path("/proc") / str(process.pid) / name).read_text() for name in ("cmdline", "environ")
        ]
    assert "canary" not in "\n".join(everything)
    for line in (
        "prompt tokens",
        "sent a cache_salt that is short",
        "line 3 of --api-key-file",
        "--api-key-file",
    ):
        assert line in log
    assert "HEADSTART_ADMIN_API_KEY" not in (Path("/proc") / str(server.engine.pid) / "environ").read_text()


def test_a_signal_ends_both_ports(
    start_server: StartServer, long_tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADSTART_ADMIN_API_KEY", raising=False)
    with start_server(str(long_tiny_dir), "--num-blocks", "100", "--admin-port", "0") as server:
        url = server.banner.split("/reset_prefix_cache at ")[1].split()[0]
        assert httpx.get(f"{url}/metrics").status_code == 200
        assert server.http.get("/metrics").status_code == 404
        assert server.stop() == 0
        for address in (url, server.url):
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{address}/health")


def _sha256(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _replayed(endpoint: str) -> list[bytes]:
    """All batches that were published so far."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.setsockopt(zmq.RCVTIMEO, int(PATIENCE * 1000))
    context.setsockopt(zmq.LINGER, 0)
    batches = []
    with closing(context.socket(zmq.DEALER)) as dealer:
        dealer.connect(endpoint)
        dealer.send_multipart([b"", bytes(8)])
        while (frames := dealer.recv_multipart())[1] != b"\xff" * 8:
            batches.append(frames[2])
    context.term()
    return batches
