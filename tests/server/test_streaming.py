"""Clients that leave, engines that fail, and work that must not stop the others."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from headstart.server.app import build_app
from headstart.server.streaming import until_disconnect
from headstart.text import ChatTemplate

CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, 1)
ONE = ("/v1/completions", {"prompt": "hi"}, 1)
SEVERAL = ("/v1/completions", {"prompt": ["a", "b", "c"]}, 3)
CHOICES = ("/v1/completions", {"prompt": ["a", "b"], "n": 2}, 4)
CHATS = (CHAT[0], CHAT[1] | {"n": 3}, 3)
RESPONSE = ("/v1/responses", {"input": "hi"}, 1)
MESSAGE = ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}, 1)
FORMS = [
    pytest.param(path, body | {"stream": streamed}, count, id=f"{path[4:8]}-{count}-{streamed}")
    for path, body, count in (CHAT, ONE, SEVERAL, CHOICES, CHATS, RESPONSE, MESSAGE)
    for streamed in (False, True)
]


class Client:
    """One request to an ASGI app, by a client that can leave."""

    def __init__(self, app: Any, path: str, body: Any = None, method: str = "POST") -> None:
        self.app = app
        self.left = asyncio.Event()
        self.reads = asyncio.Event()  # cleared: the client takes nothing in, so sending to it waits
        self.reads.set()
        self.status: int | None = None
        self.received = b""
        self._body = b"" if body is None else json.dumps(body).encode()
        self._body_sent = False
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(b"content-type", b"application/json")], "http_version": "1.1", "scheme": "http",
            "server": ("test", 80), "client": ("test", 1), "asgi": {"version": "3.0", "spec_version": "2.4"},
        }  # fmt: skip
        self.served = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._body_sent:
            self._body_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.status = message.get("status", self.status)
        self.received += message.get("body", b"")
        await self.reads.wait()


async def until(condition: Callable[[], object]) -> None:
    """Let the others run until ``condition`` holds."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


def app_of(engine: Any) -> Any:
    return build_app(engine, engine.tokenizer, ChatTemplate("{{ messages[0].content }}"))


@pytest.mark.parametrize(("path", "body", "count"), FORMS)
def test_a_client_that_leaves_while_it_waits_aborts_its_requests(
    engine: Any, path: str, body: Any, count: int
) -> None:
    async def scene() -> None:
        engine.gate = asyncio.Semaphore(0)  # the engine never gets to the first token
        client = Client(app_of(engine), path, body)
        await until(lambda: len(engine.running) == count)
        client.left.set()
        await client.served
        assert not engine.running
        assert len(engine.aborted) == count

    asyncio.run(scene())


@pytest.mark.parametrize(("path", "body", "count"), [form for form in FORMS if form.values[1]["stream"]])
def test_a_client_that_leaves_amid_a_stream_aborts_its_requests(
    engine: Any, path: str, body: Any, count: int
) -> None:
    async def scene() -> None:
        engine.gate = asyncio.Semaphore(0)
        client = Client(app_of(engine), path, body)
        await until(lambda: len(engine.running) == count)
        for _ in range(count):
            engine.gate.release()
        await until(lambda: client.received)
        client.left.set()
        await client.served
        assert not engine.running
        assert len(engine.aborted) == count
        assert b"[DONE]" not in client.received

    asyncio.run(scene())


@pytest.mark.parametrize(("path", "body", "count"), [form for form in FORMS if form.values[1]["stream"]])
def test_a_client_that_reads_nothing_and_leaves_aborts_its_requests(
    engine: Any, path: str, body: Any, count: int
) -> None:
    async def scene() -> None:
        engine.gate = asyncio.Semaphore(0)
        client = Client(app_of(engine), path, body)
        await until(lambda: len(engine.running) == count)
        client.reads.clear()
        for _ in range(2 * count):
            engine.gate.release()
        await until(lambda: client.received)
        gc.disable()  # closing must not be left to the collector
        try:
            client.left.set()
            await client.served
            assert not engine.running
            assert len(engine.aborted) == count
        finally:
            gc.enable()

    asyncio.run(scene())


@pytest.mark.parametrize(("path", "body", "count"), FORMS)
def test_a_server_that_cancels_a_request_aborts_it(engine: Any, path: str, body: Any, count: int) -> None:
    async def scene() -> None:
        engine.gate = asyncio.Semaphore(0)
        client = Client(app_of(engine), path, body)
        await until(lambda: len(engine.running) == count)
        client.served.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client.served
        assert not engine.running

    asyncio.run(scene())


@pytest.mark.parametrize(("path", "body", "count"), FORMS)
@pytest.mark.parametrize("dead", [True, False])
def test_an_engine_that_fails_is_told_as_an_error(
    engine: Any, path: str, body: Any, count: int, dead: bool
) -> None:
    async def scene() -> None:
        engine.fail_after = 2
        engine.failure = engine.failure if dead else "the sampler broke"
        client = Client(app_of(engine), path, body)
        await client.served
        assert not engine.running
        if body["stream"]:
            assert client.status == 200
            *_, last, rest = client.received.decode().split("\n\n")
            assert rest == ""
            told = json.loads(last.splitlines()[-1].removeprefix("data: "))
            error = told["response"]["error"] if told.get("type") == "response.failed" else told["error"]
        else:
            assert client.status == (503 if dead else 500)
            error = json.loads(client.received)["error"]
        kind = error.get("type", error.get("code"))
        assert kind == (
            {True: "overloaded_error", False: "api_error"}[dead] if path == MESSAGE[0] else "server_error"
        )
        assert error["message"] == str(engine.failure)

    asyncio.run(scene())


def test_a_bug_amid_a_stream_ends_it_with_an_error_and_is_logged(
    engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        engine.fail_after, engine.failure = 1, KeyError("secret")
        client = Client(app_of(engine), ONE[0], ONE[1] | {"stream": True})
        await client.served
        last = client.received.decode().split("\n\n")[-2]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "internal_error"
        assert b"secret" not in client.received
        metrics = Client(client.app, "/metrics", method="GET")
        await metrics.served
        assert b'request_success_total{engine="0",finished_reason="error",model_name="fake/model"} 1.0' in (
            metrics.received
        )

    asyncio.run(scene())
    assert "KeyError: 'secret'" in caplog.text


def test_health_answers_while_a_long_text_is_tokenised(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenising, proceed = threading.Event(), threading.Event()
    encode = engine.tokenizer.encode

    def slow(text: str, add_special_tokens: bool = True) -> list[int]:
        tokenising.set()
        assert proceed.wait(30)
        ids: list[int] = encode(text[:10], add_special_tokens)
        return ids

    monkeypatch.setattr(engine.tokenizer, "encode", slow, raising=True)

    async def scene() -> None:
        app = app_of(engine)
        long = Client(app, "/v1/completions", {"prompt": "word " * 900})
        await until(tokenising.is_set)
        health = Client(app, "/health", method="GET")
        await health.served
        assert health.status == 200
        assert not long.served.done()
        proceed.set()
        await long.served
        assert long.status == 200

    asyncio.run(scene())


def test_until_disconnect_prefers_a_result_that_is_there() -> None:
    async def scene() -> None:
        async def never() -> dict[str, str]:
            await asyncio.Event().wait()
            raise AssertionError

        async def gone() -> dict[str, str]:
            return {"type": "http.disconnect"}

        async def answer() -> int:
            return 42

        assert await until_disconnect(never, answer()) == 42
        assert await until_disconnect(gone, answer()) == 42
        with pytest.raises(ClientDisconnect):
            await until_disconnect(gone, never())  # type: ignore[arg-type]

    asyncio.run(scene())


def test_health_answers_while_a_template_takes_its_time(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rendering, proceed = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> str:
        rendering.set()
        assert proceed.wait(30)
        return "hi"

    monkeypatch.setattr(ChatTemplate, "render", slow)

    async def scene() -> None:
        app = app_of(engine)
        chat = Client(app, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
        await until(rendering.is_set)
        health = Client(app, "/health", method="GET")
        await health.served
        assert health.status == 200
        assert not chat.served.done()
        proceed.set()
        await chat.served
        assert chat.status == 200

    asyncio.run(scene())
