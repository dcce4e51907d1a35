"""Real servers with too much to do: a thousand streams, readers that hardly read, the last seconds."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from headstart.server.listen import allow_connections
from tests.e2e.conftest import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Server, StartServer

MIB = 2**20
COMPLETIONS = "/v1/completions"
LONG = 15_000


HI = {"messages": [{"role": "user", "content": "hi"}]}
ROUTES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hi"},
    "/v1/chat/completions": HI,
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {**HI, "model": "tiny", "max_tokens": 5},
    "/v1/cache/warm": HI,
}


@pytest.fixture(scope="module")
def start(start_server: StartServer, long_tiny_dir: Path) -> Any:
    def started(*options: str) -> Any:
        common = ("--served-model-name", "tiny", "--dtype", "float32", "--num-blocks", "2000")
        return start_server(str(long_tiny_dir), *common, *options)

    return started


def asked(path: str, body: dict[str, Any]) -> bytes:
    """A request, as it is sent."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


def address(server: Server) -> tuple[str, int]:
    url = httpx.URL(server.url)
    assert url.port is not None
    return url.host, url.port


def memory(server: Server) -> int:
    size: int = psutil.Process(server.process.pid).memory_info().rss
    return size


def check_refusal(answer: httpx.Response, route: str, status: int, kind: str, anthropic: str) -> None:
    assert answer.status_code == status, (route, answer.text)
    assert int(answer.headers["retry-after"]) > 0
    reply = answer.json()
    if route == "/v1/messages":
        assert (reply["type"], reply["error"]["type"]) == ("error", anthropic)
    else:
        assert set(reply["error"]) == {"message", "type", "param", "code"}
        assert reply["error"]["type"] == kind


async def streams_at_once(server: Server, count: int) -> list[bytes]:
    """The answers of so many connections, which are all there before the first of them asks."""
    host, port = address(server)
    connections = [await asyncio.open_connection(host, port) for _ in range(count)]

    async def answer(number: int) -> bytes:
        reader, writer = connections[number]
        body = {"prompt": f"number {number}", "max_tokens": 3, "ignore_eos": True, "stream": True}
        writer.write(asked(COMPLETIONS, body))
        text = await reader.read()
        writer.close()
        return text

    return await asyncio.gather(*map(answer, range(count)))


def test_a_thousand_streams_are_served_whole_or_refused(start: Any) -> None:
    allow_connections()
    with start("--max-num-seqs", "64", "--max-queue", "336", "--no-access-log") as server:
        asyncio.run(streams_at_once(server, 20))
        server.until_idle()
        process = psutil.Process(server.process.pid)
        descriptors, size = process.num_fds(), memory(server)
        statuses: Counter[int] = Counter()
        for answer in asyncio.run(asyncio.wait_for(streams_at_once(server, 1000), 120)):
            head, _, body = answer.partition(b"\r\n\r\n")
            status = int(head.split()[1])
            statuses[status] += 1
            if status == 200:
                assert b'"finish_reason":"length"' in body
                assert body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            else:
                assert status == 429
                assert b"\r\nretry-after: 1\r\n" in head.lower()
                assert json.loads(body)["error"]["code"] == "queue_full"
        assert statuses[200] >= 400
        assert statuses[429] >= 100
        server.until_idle()
        wait_until(lambda: process.num_fds() <= descriptors)
        assert memory(server) - size < 150 * MIB
        assert server.stderr.read_text() == ""


def test_who_has_no_descriptors_left_says_so_and_goes_on(start: Any) -> None:
    with start() as server:
        process = psutil.Process(server.process.pid)
        soft, _ = process.rlimit(psutil.RLIMIT_NOFILE)
        assert soft == min(65_536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        few = process.num_fds() + 10
        process.rlimit(psutil.RLIMIT_NOFILE, (few, few))
        with ExitStack() as connections:
            for _ in range(30):
                connections.enter_context(socket.create_connection(address(server)))
            wait_until(lambda: "no connection can be taken" in server.stderr.read_text())
        assert server.http.post(COMPLETIONS, json={"prompt": "hi", "max_tokens": 2}).status_code == 200
        assert server.stop() == 0
        told = [line for line in server.stderr.read_text().splitlines() if line.startswith("ERROR")]
        assert all("no connection can be taken" in line for line in told)
        assert len(told) < 60  # one a second, and not thousands
        assert "Traceback" not in server.stderr.read_text()


@contextmanager
def slow_reader(server: Server, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A client that has asked and has room for a few kilobytes of the answer."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(address(server))
        connection.settimeout(60)
        connection.sendall(asked("/v1/chat/completions", body))
        yield connection


def test_who_reads_slowly_stalls_nobody(start: Any) -> None:
    # Some megabytes each, of which the system keeps a part.
    body = {
        **HI,
        "max_tokens": 2000,
        "ignore_eos": True,
        "stream": True,
        "logprobs": True,
        "top_logprobs": 20,
    }
    with start("--max-num-seqs", "16") as server, ExitStack() as slow:
        size = memory(server)
        readers = [slow.enter_context(slow_reader(server, body)) for _ in range(4)]
        got = [reader.recv(1) for reader in readers]
        quick = {"prompt": "quick", "max_tokens": 50, "ignore_eos": True, "stream": True}
        for _ in range(3):
            with server.http.stream("POST", COMPLETIONS, json=quick) as response:
                assert [line for line in response.iter_lines() if line][-1] == "data: [DONE]"
            got = [beginning + reader.recv(1) for beginning, reader in zip(got, readers, strict=True)]
        # The engine is through with them all, though hardly anything was read.
        wait_until(lambda: not server.metric("num_requests_running"))
        assert server.http.post(COMPLETIONS, json={"prompt": "hi", "max_tokens": 2}).status_code == 200
        assert memory(server) - size < 150 * MIB
        for beginning, reader in zip(got, readers, strict=True):
            assert beginning == b"HTTP"
            answer = bytearray()
            while more := reader.recv(2**16):
                answer += more
            assert answer.count(b'"top_logprobs":[') == 2000
            assert len(answer) > 2 * MIB
            assert b"data: [DONE]" in answer


def last_event(lines: Iterator[str]) -> str:
    return [line for line in lines if line][-1].removeprefix("data: ")


def test_the_last_streams_have_until_the_deadline(start: Any) -> None:
    body = {"prompt": "hi", "ignore_eos": True, "stream": True}
    with start("--shutdown-timeout", "4") as server, ExitStack() as streams:
        answers = [
            streams.enter_context(
                server.http.stream("POST", COMPLETIONS, json=body | {"max_tokens": max_tokens})
            ).iter_lines()
            for max_tokens in (LONG, 40)
        ]
        for lines in answers:
            next(lines)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_refused(server))
        assert last_event(answers[1]) == "[DONE]"
        assert server.process.poll() is None
        error = json.loads(last_event(answers[0]))["error"]
        assert error["type"] == "server_error"
        assert "shutting down" in error["message"]
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.stderr.read_text()


def is_refused(server: Server) -> bool:
    try:
        with socket.create_connection(address(server)):
            return False
    except ConnectionRefusedError:
        return True


def test_who_comes_too_much_is_told_when_to_come_again(start: Any) -> None:
    running = {"prompt": "hi", "max_tokens": LONG, "ignore_eos": True, "stream": True}
    with start("--max-num-seqs", "1", "--max-queue", "1") as server:
        with (
            server.http.stream("POST", COMPLETIONS, json=running) as runs,
            server.http.stream("POST", COMPLETIONS, json=running),
        ):
            lines = runs.iter_lines()  # whoever drops it, leaves
            next(lines)
            for route, body in ROUTES.items():
                for stream in ({}, {"stream": True}) if route != "/v1/cache/warm" else ({},):
                    answer = server.http.post(route, json=body | stream)
                    check_refusal(answer, route, 429, "rate_limit_error", "rate_limit_error")
        server.until_idle()
        server.engine.kill()
        wait_until(lambda: server.http.get("/health").status_code == 503)
        for route, body in ROUTES.items():
            check_refusal(server.http.post(route, json=body), route, 503, "server_error", "overloaded_error")
