"""A real server and clients that mean no good: huge bodies, broken HTTP, connections that break off."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from conftest import Server

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
FIFTY_MB = 50 * 10**6
MEBIBYTE = b"a" * 2**20
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"


@contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        yield connection


def answer_to(server: Server, *pieces: bytes) -> bytes:
    """What the server says until it hangs up, or to the end of its answer; sending stops when it speaks."""
    with connected(server) as connection:
        for piece in pieces:
            with suppress(ConnectionError):
                connection.sendall(piece)
            if select.select([connection], [], [], 0)[0]:
                break
        answer = b""
        with suppress(ConnectionError):
            while not _is_whole(answer) and (more := connection.recv(2**16)):
                answer += more
        return answer


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(end and length) and len(body) >= int(length[0].split(b":")[1])


def huge(kind: str) -> list[bytes]:
    pieces = [MEBIBYTE] * (FIFTY_MB // 2**20)
    if kind == "told":
        return [HEAD + b"Content-Length: %d\r\n\r\n" % FIFTY_MB, *pieces]
    if kind == "more than told":
        return [HEAD + b"Content-Length: 2\r\n\r\n{}", *pieces]
    chunk = b"100000\r\n" + MEBIBYTE + b"\r\n"
    return [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * len(pieces)]


def test_huge_bodies_are_refused_and_leave_no_memory_behind(tiny_server: Server) -> None:
    def memory() -> int:
        size: int = psutil.Process(tiny_server.process.pid).memory_info().rss
        return size

    statuses = {"told": b"413", "chunked": b"413", "more than told": b"400"}
    for kind in [*statuses] * 5:  # what the first ones take is kept for those that follow
        answer_to(tiny_server, *huge(kind))
    before = memory()
    for _ in range(7):
        for kind, status in statuses.items():
            assert answer_to(tiny_server, *huge(kind)).startswith(b"HTTP/1.1 " + status), kind
    assert memory() - before < 2 * FIFTY_MB
    assert tiny_server.http.get("/health").status_code == 200


def test_who_asks_before_sending_is_told_not_to(tiny_server: Server) -> None:
    expect = b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % FIFTY_MB
    assert answer_to(tiny_server, HEAD + expect).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /health HTTP/1.0\r\n\r\n", 200),
        (GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 200),
        (GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n", 200),
        (GET + b"Content-Length: 9\r\n\r\nand a body", 200),
        (b"PUT /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
        (b"GET /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /health HTTP/1.1\r\nHost: [\r\n\r\n", 200),
        (b"GET /nothing HTTP/1.1\r\nHost: [\r\n\r\n", 404),
        (b"GET /v1/models/ HTTP/1.1\r\nHost: [\r\n\r\n", 404),
        (b"GET /%00%ff%ed%a0%80 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"BREW /health HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (HEAD + b"Content-Length: 0\r\n\r\n", 400),
        (HEAD + b"\r\n", 400),
        (HEAD + b"Content-Length: 2\r\nContent-Encoding: gzip\r\n\r\n{}", 415),
        # Not HTTP at all, or not any more.
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 404),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (GET + b"X: a\x00b\r\n\r\n", 400),
        (GET + b"X: " + b"a" * 2**20 + b"\r\n\r\n", 400),
        (b"GET /" + b"a" * 2**20 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400),
    ],
)
def test_odd_http_has_an_answer(tiny_server: Server, sent: bytes, status: int) -> None:
    head, _, body = answer_to(tiny_server, sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d" % status)
    if status != 200 and body:
        reply, _ = json.JSONDecoder().raw_decode(body.decode())  # what follows may have an answer of its own
        assert set(reply["error"]) == {"message", "type", "param", "code"}
    assert tiny_server.http.get("/health").status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nnot a length\r\n",
        b"POST /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nnot a length\r\n",
        HEAD + b"Content-Length: 2\r\n\r\n{}" + b"and then something else" * 10_000,
    ],
)
def test_whoever_goes_on_in_gibberish_is_hung_up_on(tiny_server: Server, sent: bytes) -> None:
    with connected(tiny_server) as connection, suppress(ConnectionError):
        connection.sendall(sent)
        while connection.recv(2**16):
            pass
    assert tiny_server.http.get("/health").status_code == 200


def test_requests_in_a_row_on_one_connection_are_answered_in_order(tiny_server: Server) -> None:
    bodies = [json.dumps({"prompt": "a" * 50, "max_tokens": 1 + number}).encode() for number in range(3)]
    with connected(tiny_server) as connection:
        for body in bodies:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        connection.sendall(GET + b"Connection: close\r\n\r\n")
        text = b""
        while more := connection.recv(2**16):
            text += more
    counts = [text.index(b'"completion_tokens":%d' % (1 + number)) for number in range(3)]
    assert counts == sorted(counts)
    assert text.count(b"HTTP/1.1 200") == 4


def test_connections_that_break_off_leave_nothing_behind(tiny_server: Server) -> None:
    tiny_server.until_idle()
    process = psutil.Process(tiny_server.process.pid)
    before = process.num_fds()
    for beginning in (
        b"",
        b"GET /he",
        HEAD,
        HEAD + b"Content-Length: 99\r\n\r\n{",
        huge("chunked")[0] + b"10\r\n{",
    ):
        for _ in range(10):
            with connected(tiny_server) as connection:
                connection.sendall(beginning)
    tiny_server.until_idle()
    assert tiny_server.http.get("/health").status_code == 200
    assert process.num_fds() <= before + 2


def test_a_novel_is_refused_before_it_is_tokenised(tiny_server: Server) -> None:
    def seconds() -> float:
        times = psutil.Process(tiny_server.process.pid).cpu_times()
        return float(times.user + times.system)

    before = seconds()
    response = tiny_server.http.post("/v1/completions", json={"prompt": "a b c d " * 2_000_000})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert "20000 tokens" in error["message"]
    assert seconds() - before < 5  # of the processor; the tokenizer would take half a minute
