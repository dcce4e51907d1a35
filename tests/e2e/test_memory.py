"""The whole house, front and engine, under clients that come and go: nothing of them stays, nothing grows."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partialmethod
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from headstart.config import EngineConfig
from headstart.engine.messages import StepOutputs, Submit
from headstart.engine.request import RequestOutput, SamplingParams
from headstart.engine.supervisor import EngineSupervisor
from headstart.server import protocol, replies
from headstart.server.app import build_app
from headstart.server.choice import Choice, Piece
from headstart.server.explanations import Explanations
from headstart.server.front import Ticket
from headstart.server.generation import Generation
from headstart.server.listen import HttpServer, bind, url_of
from headstart.server.logprobs import SpelledToken
from headstart.server.metrics import RequestTimer
from headstart.server.streaming import EventStream
from headstart.text import ChatTemplate, TextStream, Tokenizer
from tests.gone import alive, holders_of, holders_of_text, num_objects, resident_bytes

OF_A_REQUEST = (
    Request, Ticket, Generation, Piece, RequestTimer, TextStream, EventStream, SpelledToken, SamplingParams,
    Submit, StepOutputs, RequestOutput, asyncio.Queue,
    protocol.ChatRequest, protocol.CompletionRequest, replies.ChatReply, replies.ChatChunk,
    replies.CompletionReply, replies.Usage, Choice,
)  # fmt: skip
SECRET = (503, 499, 509, 491, 487, 479, 467, 463)
SECRET_TEXT = "the old key lies beneath the seventh stone"
VOCAB = range(3, 460)  # without special tokens and those of the secret


class House:
    """A server in this process, its engine in another."""

    def __init__(self, server: HttpServer, supervisor: EngineSupervisor, url: str) -> None:
        self.engine = supervisor._client
        assert self.engine._process is not None
        self.engine_pid = self.engine._process.pid
        self._server = server
        self._url = url

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client; when it is gone the house is quiet, and the pool exactly free."""
        # A connection for each request: the server may close a kept one just as it is used again.
        once = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=self._url, timeout=60, limits=once, trust_env=False) as http:
            yield http
        state = self._server.server_state
        await until(lambda: not (state.connections or state.tasks))
        await until(lambda: (self.engine.stats.num_running, self.engine.stats.num_waiting) == (0, 0))
        assert self.engine.stats.kv_cache_usage == 0.0
        assert (self.engine._queues, self.engine._seats, self.engine._resets) == ({}, {}, {})
        assert await self.engine.reset_prefix_cache(), "a block is in use"


@asynccontextmanager
async def house_of(model: Path) -> AsyncIterator[House]:
    options = {"served_model_name": "tiny", "dtype": "float32", "num_blocks": 64, "max_queued_requests": 4}
    supervisor = EngineSupervisor(EngineConfig.from_options(model=str(model), max_num_seqs=8, **options))
    await supervisor.start()
    ready = asyncio.Event()
    app = build_app(supervisor, Tokenizer.from_directory(model), ChatTemplate.from_directory(model))
    try:
        with bind("127.0.0.1", 0) as sock:
            server = HttpServer(app, on_ready=ready.set, close_engine=supervisor.shutdown)
            serving = asyncio.create_task(server.serve(sockets=[sock]))
            await ready.wait()
            yield House(server, supervisor, url_of(sock))
            server.should_exit = True
            await serving
    finally:
        await supervisor.shutdown()


def some_request(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """A path and a body: mostly good ones of all shapes."""
    prompt: Any = chance.choices(VOCAB, k=chance.choice((1, 20, 60, 300)))
    if chance.random() < 0.2:
        prompt = [prompt[:60], chance.choices(VOCAB, k=9), prompt[:30]]
    body: dict[str, Any] = {
        "model": "tiny" if chance.random() < 0.95 else "huge",
        "max_tokens": chance.choice((1, 3, 12, 40, 5000)),
        "stream": chance.random() < 0.6,
        "temperature": chance.choice((0, 0.7, -1 if chance.random() < 0.1 else 1)),
    }
    if chance.random() < 0.3:
        body["stop"] = ["e", "th"]
    if chance.random() < 0.3:
        body["cache_salt"] = str(chance.random())
    if chance.random() < 0.4:
        asked = {"logprobs": True, "top_logprobs": 3} if chance.random() < 0.5 else {"logprobs": 2}
    else:
        asked = {}
    if chance.random() < 0.4:
        words = "what is kept is found again " * chance.randint(1, 9)
        return "/v1/chat/completions", body | asked | {"messages": [{"role": "user", "content": words}]}
    return "/v1/completions", body | asked | {"prompt": prompt}


async def visit(http: httpx.AsyncClient, chance: random.Random) -> None:
    """Ask, and read all of the answer, a part of it, or nothing."""
    path, body = some_request(chance)
    patience = chance.choice((None, None, None, 0.1 * chance.random()))
    num_events = chance.choice((None, None, chance.randint(1, 10)))
    with suppress(TimeoutError):
        async with asyncio.timeout(patience), http.stream("POST", path, json=body) as response:
            async for _ in response.aiter_lines():
                if num_events is not None and (num_events := num_events - 1) < 0:
                    break


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def run(scene: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await scene

    asyncio.run(bounded())


@pytest.fixture(autouse=True)
def no_log_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytest would keep them: asyncio warns when it writes to who has left, and requests are told of."""
    for name in ("asyncio", "headstart.server.access_log"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more, every small operation of the engine waits for whoever else has the cores."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_clients_that_come_and_go_leave_nothing_behind(
    tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is kept of the last 4,096 prompts, to explain them, grows until there are so many.
    few = partialmethod(Explanations.__init__, most=16)
    monkeypatch.setattr(Explanations, "__init__", few)

    async def scene() -> None:
        async with house_of(tiny_llama_dir) as house:
            chance = random.Random(0)

            async def crowd(count: int) -> tuple[int, int]:
                """So many visits, sixteen at once; then the engine's memory, and our own objects."""

                async def visitor() -> None:
                    for _ in range(count // 16):
                        await visit(http, chance)

                async with house.client() as http, asyncio.TaskGroup() as visitors:
                    for _ in range(16):
                        visitors.create_task(visitor())
                return resident_bytes(house.engine_pid), num_objects()

            async with house.client() as http:
                await ask_in_secret(http)
            warm = [await crowd(64) for _ in range(2)]
            before, tasks = alive(*OF_A_REQUEST), asyncio.all_tasks()
            later = [await crowd(64) for _ in range(2)]
            assert alive(*OF_A_REQUEST) <= before  # fewer, if the last message happens to be gone by now
            assert asyncio.all_tasks() == tasks
            (resident, objects), (resident_later, objects_later) = (
                [median(figures) for figures in zip(*crowds, strict=True)] for crowds in (warm, later)
            )
            assert abs(resident_later / resident - 1) < 0.05
            assert objects_later - objects < 10 * 2 * 64, "a request leaves fewer than ten"
            assert holders_of(SECRET) == []
            assert holders_of_text(SECRET_TEXT) == []

    run(scene())


async def ask_in_secret(http: httpx.AsyncClient) -> None:
    """In every form, the last time without waiting for the end."""
    chat = {"messages": [{"role": "user", "content": SECRET_TEXT}]}
    for stream in (False, True):
        fields = {"max_tokens": 20, "stream": stream}
        for path, body in (("completions", {"prompt": [*SECRET, 5, 6]}), ("chat/completions", chat)):
            assert (await http.post(f"/v1/{path}", json=body | fields)).is_success
    async with http.stream("POST", "/v1/completions", json={"prompt": SECRET_TEXT, "stream": True}):
        assert holders_of_text(SECRET_TEXT)
