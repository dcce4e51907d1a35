import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from headstart.errors import ConfigError
from headstart.lab.load.client import LoadError, Server, connect
from headstart.lab.load.timing import Timing, Usage
from tests.fake_openai import WORDS, FakeServer, serving


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Body(httpx.AsyncByteStream):
    """Pieces of a body, each of which takes its seconds to come."""

    def __init__(self, clock: Clock, pieces: list[tuple[float, bytes]]) -> None:
        self.clock, self.pieces = clock, pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for seconds, piece in self.pieces:
            self.clock.now += seconds
            yield piece


def event(*choices: dict[str, Any], **more: Any) -> bytes:
    return f"data: {json.dumps({'choices': choices, **more})}\n\n".encode()


DONE = b"data: [DONE]\n\n"


def timed(*pieces: tuple[float, bytes], chat: bool = False, headers_after: float = 0.0) -> Timing:
    """What is measured of a server that sends these pieces, each after its seconds."""
    clock = Clock()

    def answer(_: httpx.Request) -> httpx.Response:
        clock.now += headers_after
        return httpx.Response(200, stream=Body(clock, list(pieces)))

    async def measure() -> Timing:
        transport = httpx.MockTransport(answer)
        async with connect("http://fake", model="m", clock=clock, transport=transport) as server:
            if chat:
                return await server.chat([{"role": "user", "content": "hi"}], 8)
            return await server.complete([5, 6, 7], 8)

    return asyncio.run(measure())


def test_times_count_from_sending_to_each_event_with_output() -> None:
    timing = timed(
        (0.50, event({"text": "a"})),
        (0.25, event({"text": "b"}) + event({"text": "c"})),
        (0.10, event({"text": "d", "finish_reason": "length"})),
        (9.00, event(usage={"prompt_tokens": 3, "completion_tokens": 4}) + DONE),
        headers_after=0.25,
    )
    assert timing.first_token == pytest.approx(0.75)
    assert timing.gaps == pytest.approx([0.25, 0.0, 0.10])
    assert timing.end - timing.sent == pytest.approx(1.10), "what comes after the last token takes no time"
    assert timing.rate == pytest.approx(3 / 0.35)
    assert (timing.num_sent, timing.num_asked, timing.num_tokens, timing.text) == (3, 8, 4, "abcd")
    assert timing.usage == Usage(prompt_tokens=3, cached_tokens=None, completion_tokens=4)


def test_a_cut_event_counts_when_it_is_complete() -> None:
    whole = event({"text": "a", "finish_reason": "stop"})
    timing = timed((1.0, whole[:9]), (1.0, whole[9:-1]), (1.0, whole[-1:] + DONE))
    assert timing.first_token == pytest.approx(3.0)


def test_a_token_without_text_counts_and_a_closing_event_does_not() -> None:
    half, closing = event({"text": ""}), event({"text": "", "finish_reason": "length"})
    timing = timed((1, half), (1, event({"text": "ö"})), (1, closing), (1, DONE))
    assert timing.first_token == pytest.approx(1)
    assert timing.gaps == pytest.approx([1])
    assert timing.num_tokens == 2


def test_an_answer_of_one_event_without_text_is_its_first_token() -> None:
    timing = timed((1, event({"text": "", "finish_reason": "length"})), (1, DONE))
    assert timing.first_token == pytest.approx(1)
    assert timing.rate is None
    assert timing.num_tokens == 1


def test_the_opening_event_of_a_chat_is_no_token() -> None:
    timing = timed(
        (1, event({"delta": {"role": "assistant", "content": ""}})),
        (1, event({"delta": {"content": "Hi"}})),
        (1, event({"delta": {}, "finish_reason": "stop"})),
        chat=True,
    )
    assert timing.first_token == pytest.approx(2)
    assert timing.num_tokens == 1
    assert timing.num_sent is None


def test_usage_is_believed_before_timings_whichever_comes_first() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 8}}
    timings = {"cache_n": 4, "prompt_n": 5, "predicted_n": 2}
    last = event({"text": "a", "finish_reason": "length"})
    for tail in (event(timings=timings) + event(usage=usage), event(usage=usage) + event(timings=timings)):
        assert timed((1, last), (1, tail)).usage == Usage(10, 8, 1)
    assert timed((1, last), (1, event(timings=timings))).usage == Usage(9, 4, 2)


def test_a_real_stream_cut_anywhere() -> None:
    fake = FakeServer()

    async def measure(base_url: str) -> None:
        async with connect(base_url) as server:
            cuts = itertools.product([None, 1, 3, 7, 50, 10_000], ["\n", "\r\n"], [False, True])
            for fake.piece, fake.line_end, fake.closing_event in cuts:
                timing = await server.complete(range(50), 9)
                assert timing.text == "".join(WORDS) + WORDS[0] + WORDS[1]
                assert len(timing.arrivals) == timing.num_tokens == 9
                assert list(timing.arrivals) == sorted(timing.arrivals)
                assert 0 < timing.first_token <= timing.end - timing.sent
                assert timing.usage.prompt_tokens == 50

    with serving(fake) as base_url:
        asyncio.run(measure(base_url))


def test_what_is_sent() -> None:
    fake = FakeServer()
    ask(fake, lambda server: server.complete(range(3), 9), api_key="secret")
    assert fake.received == [
        {
            "model": "fake-1",
            "prompt": [0, 1, 2],
            "max_tokens": 9,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]
    assert fake.headers[0]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("fake", "usage", "num_tokens"),
    [
        (FakeServer(usage="llama.cpp", closing_event=True), Usage(9, 8, 4), 4),
        (FakeServer(usage="uncounted"), Usage(9, None, 4), 4),
        (FakeServer(usage="none"), Usage(), 4),
        (FakeServer(adds_bos=True), Usage(10, 9, 4), 4),
        (FakeServer(stops_after=2), Usage(9, 8, 2), 2),
    ],
    ids=["llama.cpp", "no cached tokens", "no usage", "adds a token", "stops early"],
)
def test_what_servers_report(fake: FakeServer, usage: Usage, num_tokens: int) -> None:
    async def twice(server: Server) -> Timing:
        await server.complete(range(9), 4)
        return await server.complete(range(9), 4)

    timing = ask(fake, twice)
    assert timing.usage == usage
    assert timing.num_tokens == num_tokens


def ask(fake: FakeServer, question: Callable[[Server], Awaitable[Timing]], **options: Any) -> Timing:
    async def measure(base_url: str) -> Timing:
        async with connect(base_url, **options) as server:
            return await question(server)

    with serving(fake) as base_url:
        return asyncio.run(measure(base_url + options.pop("suffix", "")))


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_an_address_may_end_in_v1(suffix: str) -> None:
    assert ask(FakeServer(), lambda server: server.complete([1], 1), suffix=suffix).num_tokens == 1


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host", "http://", "http://host:port", "/v1"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="a base URL looks like"):
        asyncio.run(open_and_close(url))


async def open_and_close(url: str, **options: Any) -> None:
    async with connect(url, **options):
        pass


def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, so that nobody else takes it, but not listening
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(LoadError, match=f"cannot reach {url}: is a server running there"):
            asyncio.run(open_and_close(url))


def test_somebody_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(LoadError, match=r"sent nothing for 0\.05 seconds"):
            asyncio.run(open_and_close(url, timeout=0.05))


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (httpx.Response(200, text="<html>It works!</html>"), "GET /v1/models lists no model"),
        (httpx.Response(200, json={"data": []}), "lists no model"),
        (httpx.Response(200, json=[1]), "lists no model"),
        (httpx.Response(200, content=b"\xff\xfe"), "lists no model"),
        (httpx.Response(404, text=""), "says 404: Not Found"),
        (httpx.Response(401, json={"error": {"message": "no key"}}), "says 401: no key"),
    ],
)
def test_somebody_else(response: httpx.Response, said: str) -> None:
    transport = httpx.MockTransport(lambda _: response)
    with pytest.raises(LoadError, match=f"http://fake is not an OpenAI-compatible server.*{said}"):
        asyncio.run(open_and_close("http://fake", transport=transport))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "too long", "code": 400}}, "the server answered 400: too long"),
        ({"error": "too long"}, "the server answered 400: too long"),
        ({"object": "error", "message": "too long"}, "the server answered 400: too long"),
        ({"detail": "too long"}, "the server answered 400: too long"),
        ("too long", "the server answered 400: too long"),
    ],
)
def test_a_refusal_in_the_servers_words(body: Any, said: str) -> None:
    with pytest.raises(LoadError, match=said):
        ask(FakeServer(failure=(400, body)), lambda server: server.complete([1], 1))


@pytest.mark.parametrize(
    ("fake", "said"),
    [
        (FakeServer(error_after=2), "the server failed while streaming: the engine died"),
        (FakeServer(breaks_after=2), "broke off its answer to POST /v1/completions"),
        (FakeServer(breaks_after=0), "without streaming any output"),
        (FakeServer(failure=(200, {"choices": [{"text": "whole"}]})), "without streaming any output"),
    ],
)
def test_a_stream_that_goes_wrong(fake: FakeServer, said: str) -> None:
    with pytest.raises(LoadError, match=said):
        ask(fake, lambda server: server.complete([1], 5))


@pytest.mark.parametrize("data", [b"{}x", b"[1]", b'{"choices": 3}', b'{"choices": [{"text": "\xff"}]}', b""])
def test_a_stream_of_something_else(data: bytes) -> None:
    with pytest.raises(LoadError, match="the server streamed what no OpenAI server does"):
        timed((1, b"data: " + data + b"\n\n"))


def test_a_connection_that_breaks() -> None:
    async def send_half(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + event({"text": "a"}))
        await writer.drain()
        writer.close()

    async def measure() -> None:
        listener = await asyncio.start_server(send_half, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        async with listener, connect(f"http://127.0.0.1:{port}", model="m") as server:
            await server.complete([1], 5)

    with pytest.raises(LoadError, match=r"the connection to http://127\.0\.0\.1:\d+ broke: "):
        asyncio.run(measure())
