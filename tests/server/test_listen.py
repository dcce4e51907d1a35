"""The socket before anything is loaded, and how a server ends."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest

from headstart.errors import ConfigError, EngineDeadError
from headstart.server import listen
from headstart.server.app import build_app
from headstart.server.listen import HttpServer, allow_connections, bind, url_of

ASK = {"prompt": "hi", "stream": True}


def test_any_free_port_is_told() -> None:
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert port > 0
        assert url_of(sock) == f"http://127.0.0.1:{port}"


def test_a_port_in_use_is_one_sentence() -> None:
    with bind("127.0.0.1", 0) as sock:
        sock.listen()
        with pytest.raises(
            ConfigError, match=r"cannot listen on port \d+ of 127.0.0.1: it is in use.*--port"
        ):
            bind("127.0.0.1", sock.getsockname()[1])


def test_an_address_that_is_none_or_not_ours() -> None:
    with pytest.raises(ConfigError, match="no address"):
        bind("no such host", 0)
    with pytest.raises(ConfigError, match="does not have that address"):
        bind("192.0.2.1", 0)  # reserved for documentation


def test_an_ipv6_address_is_bracketed() -> None:
    try:
        sock = bind("::1", 0)
    except ConfigError:
        pytest.skip("this machine has no IPv6")
    with sock:
        assert url_of(sock).startswith("http://[::1]:")


def test_a_port_taken_since_bind_is_the_same_sentence(engine: Any) -> None:
    async def scene() -> None:
        with bind("127.0.0.1", 0) as ours, socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(ours.getsockname())
            other.listen()
            server = HttpServer(app_of(engine), on_ready=pytest.fail, close_engine=asyncio.sleep)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="in use"):
                await server.serve(sockets=[ours])

    asyncio.run(scene())


def app_of(engine: Any) -> Any:
    return build_app(engine, engine.tokenizer, None)


def run_scene(
    engine: Any,
    scene: Callable[[HttpServer, httpx.AsyncClient, list[str]], Awaitable[None]],
    *,
    grace_s: float = 5.0,
) -> list[str]:
    """Serve ``engine`` on a real socket while ``scene`` plays; what happened to the server, in order."""
    events: list[str] = []

    async def play() -> None:
        ready = asyncio.Event()

        def on_ready() -> None:
            events.append("ready")
            ready.set()

        async def close_engine() -> None:
            events.append("engine closed")
            engine.fail_after = 0  # what still runs ends with EngineDeadError
            engine.gate.release()

        with bind("127.0.0.1", 0) as sock:
            server = HttpServer(app_of(engine), on_ready=on_ready, close_engine=close_engine, grace_s=grace_s)
            serving = asyncio.create_task(server.serve(sockets=[sock]))
            await ready.wait()
            async with httpx.AsyncClient(base_url=url_of(sock), timeout=30) as client:
                await scene(server, client, events)
            await asyncio.wait_for(serving, 30)
            events.append("ended")

    asyncio.run(play())
    return events


async def begin_stream(client: httpx.AsyncClient) -> asyncio.Task[str]:
    """A stream whose headers have come, as the task that reads it to its end."""
    started = asyncio.Event()

    async def read() -> str:
        async with client.stream("POST", "/v1/completions", json=ASK) as response:
            assert response.status_code == 200
            started.set()
            return (await response.aread()).decode()

    task = asyncio.create_task(read())
    await asyncio.wait_for(started.wait(), 30)
    return task


async def until_refused(client: httpx.AsyncClient) -> None:
    """Wait until new connections are turned away."""
    async with asyncio.timeout(30):
        while True:
            try:
                async with httpx.AsyncClient(base_url=client.base_url) as newcomer:
                    await newcomer.get("/health")
            except httpx.TransportError:
                return


def test_it_is_ready_when_it_accepts(engine: Any) -> None:
    engine.gate = asyncio.Semaphore(0)

    async def scene(server: HttpServer, client: httpx.AsyncClient, events: list[str]) -> None:
        assert events == ["ready"]
        assert (await client.get("/health")).status_code == 200
        server.handle_exit(signal.SIGTERM)

    assert run_scene(engine, scene) == ["ready", "engine closed", "ended"]


def test_running_requests_finish_within_the_grace(engine: Any) -> None:
    engine.gate = asyncio.Semaphore(0)

    async def scene(server: HttpServer, client: httpx.AsyncClient, events: list[str]) -> None:
        stream = await begin_stream(client)
        server.handle_exit(signal.SIGTERM)
        await until_refused(client)
        for _ in range(20):
            engine.gate.release()
        assert (await stream).endswith("data: [DONE]\n\n")
        assert "engine closed" not in events

    events = run_scene(engine, scene, grace_s=1000.0)  # enough for any machine
    assert events == ["ready", "engine closed", "ended"]


@pytest.mark.parametrize("second_signal", [True, False])
def test_when_grace_is_over_they_end_with_an_error(engine: Any, second_signal: bool) -> None:
    engine.gate = asyncio.Semaphore(0)
    engine.failure = EngineDeadError("the server is stopping")
    grace_s = 1000.0 if second_signal else 0.0

    async def scene(server: HttpServer, client: httpx.AsyncClient, events: list[str]) -> None:
        stream = await begin_stream(client)
        server.handle_exit(signal.SIGINT)
        if second_signal:
            server.handle_exit(signal.SIGINT)
        *_, last, rest = (await stream).split("\n\n")
        assert rest == ""
        assert json.loads(last.removeprefix("data: "))["error"]["message"] == "the server is stopping"

    assert run_scene(engine, scene, grace_s=grace_s) == ["ready", "engine closed", "ended"]


HALF_A_BODY = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: 9\r\n\r\n{"
)


async def send_raw(
    client: httpx.AsyncClient, data: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which so much was sent."""
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(data)
    return reader, writer


async def until_cut(reader: asyncio.StreamReader) -> bytes:
    """What still comes before the server hangs up."""
    with suppress(ConnectionResetError):
        return await asyncio.wait_for(reader.read(), 30)
    return b""


@pytest.mark.parametrize("sent", [b"", b"GET /health HTT", b"GET /health HTTP/1.1\r\nA: "])
def test_who_does_not_come_to_the_point_is_hung_up_on(
    engine: Any, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.gate = asyncio.Semaphore(0)

    async def scene(server: HttpServer, client: httpx.AsyncClient, events: list[str]) -> None:
        waiting = await begin_stream(client)  # for the engine, however long it takes: that is no dawdling
        monkeypatch.setattr(listen, "HEADER_SECONDS", 0.0)
        reader, writer = await send_raw(client, sent)
        assert await until_cut(reader) == b""
        writer.close()
        for _ in range(20):
            engine.gate.release()
        assert (await waiting).endswith("data: [DONE]\n\n")
        server.handle_exit(signal.SIGTERM)

    run_scene(engine, scene)


def test_a_connection_in_use_is_kept_however_old_it_is(engine: Any) -> None:
    engine.gate = asyncio.Semaphore(0)

    async def scene(server: HttpServer, client: httpx.AsyncClient, events: list[str]) -> None:
        reader, writer = await send_raw(client, b"")
        for _ in range(10):
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"HTTP/1.1 200" in await asyncio.wait_for(reader.readuntil(b"}"), 30)
            await server.on_tick(1)
            half = listen.HEADER_SECONDS / 2
            server._asking = {key: since - half for key, since in server._asking.items()}  # time flies
        writer.close()
        server.handle_exit(signal.SIGTERM)

    run_scene(engine, scene)


def test_half_a_body_does_not_keep_the_server_from_ending(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.gate = asyncio.Semaphore(0)
    monkeypatch.setattr(listen, "LAST_WORDS_SECONDS", 0.0)

    async def scene(server: HttpServer, client: httpx.AsyncClient, events: list[str]) -> None:
        reader, writer = await send_raw(client, HALF_A_BODY)
        await client.get("/health")  # so that it has come
        server.handle_exit(signal.SIGTERM)
        assert await until_cut(reader) == b""
        writer.close()

    assert run_scene(engine, scene, grace_s=0.0) == ["ready", "engine closed", "ended"]


@pytest.mark.parametrize("sent", [b"\x16\x03\x01 hello\r\n\r\n", b"GET /" + b"a" * 100_000])
def test_what_is_no_http_is_told_so_in_json(engine: Any, sent: bytes) -> None:
    engine.gate = asyncio.Semaphore(0)

    async def scene(server: HttpServer, client: httpx.AsyncClient, events: list[str]) -> None:
        reader, writer = await send_raw(client, sent)
        head, _, body = (await until_cut(reader)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        assert json.loads(body)["error"]["code"] == "invalid_http"
        writer.close()
        server.handle_exit(signal.SIGTERM)

    run_scene(engine, scene)


def test_who_does_not_read_the_answer_counts_as_gone(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "UNREAD_SECONDS", 1)
    engine.answer = "a" * 5000

    async def play() -> None:
        with bind("127.0.0.1", 0) as sock, socket.socket() as client:
            for each, buffer in ((sock, socket.SO_SNDBUF), (client, socket.SO_RCVBUF)):
                each.setsockopt(socket.SOL_SOCKET, buffer, 4096)  # far less than the answer
            ready = asyncio.Event()
            server = HttpServer(app_of(engine), on_ready=ready.set, close_engine=lambda: asyncio.sleep(0))
            serving = asyncio.create_task(server.serve(sockets=[sock]))
            await ready.wait()
            client.connect(sock.getsockname())
            body = json.dumps(ASK | {"max_tokens": 900}).encode()
            head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            async with asyncio.timeout(60):
                while not engine.submitted:
                    await asyncio.sleep(0.01)
                while engine.running or server.server_state.connections:
                    await asyncio.sleep(0.01)
            server.handle_exit(signal.SIGTERM)
            await serving

    asyncio.run(play())


@pytest.mark.parametrize(
    ("hard", "allowed"),
    [(900, 900), (65_536, 65_536), (1_048_576, 65_536), (resource.RLIM_INFINITY, 65_536)],
)
def test_as_many_connections_as_the_system_allows(
    monkeypatch: pytest.MonkeyPatch, hard: int, allowed: int
) -> None:
    limits: list[tuple[int, int]] = [(512, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _kind, pair: limits.append(pair))
    allow_connections()
    allow_connections()
    assert limits == [(512, hard), (allowed, hard)]
