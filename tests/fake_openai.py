"""A tiny OpenAI-compatible server with a prefix cache of its own, to point clients at.

It has no model: the answer to every prompt is the same words.  Its knobs are the ways in which real
servers differ.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

WORDS = ["The", " ferry\u2028", " leaves", " at", " nöon", ".", " 🛳"]


@dataclass
class FakeServer:
    """Knobs, what was received, and the FastAPI application that plays the server."""

    model: str = "fake-1"
    usage: Literal["openai", "uncounted", "llama.cpp", "none"] = "openai"
    piece: int | None = None  # bytes in each piece of a streamed body; None is an event each
    line_end: str = "\n"
    adds_bos: bool = False
    caches: bool = True
    stops_after: int | None = None
    closing_event: bool = False  # finish_reason in an event of its own, as llama.cpp sends it
    failure: tuple[int, Any] | None = None  # status and JSON body of every completion
    error_after: int | None = None  # events, then an error event
    breaks_after: int | None = None  # events, then the end without a word
    received: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    _seen: list[list[int]] = field(default_factory=list)

    def app(self) -> FastAPI:
        """The routes."""
        app = FastAPI()

        @app.get("/v1/models")
        def models() -> dict[str, Any]:
            return {"object": "list", "data": [{"id": self.model, "object": "model"}, {"id": "other"}]}

        @app.post("/v1/completions")
        @app.post("/v1/chat/completions")
        async def generate(request: Request) -> Any:
            body = await request.json()
            self.received.append(body)
            self.headers.append(dict(request.headers))
            if self.failure is not None:
                return JSONResponse(self.failure[1], self.failure[0])
            return StreamingResponse(self._pieces(body), media_type="text/event-stream")

        return app

    async def _pieces(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        end = self.line_end
        events = [f": a comment{end}"] + [f"data: {data}{end}{end}" for data in self._events(body)]
        if self.piece is None:
            for event in events:
                yield event.encode()
            return
        whole = "".join(events).encode()
        for start in range(0, len(whole), self.piece):
            yield whole[start : start + self.piece]

    def _events(self, body: dict[str, Any]) -> Iterator[str]:
        chat = "messages" in body
        prompt = self._tokens(body)
        cached = self._remember(prompt)
        count = body["max_tokens"] if self.stops_after is None else min(self.stops_after, body["max_tokens"])
        reason = "length" if count == body["max_tokens"] else "stop"
        if chat:
            yield self._event({"delta": {"role": "assistant", "content": ""}})
        for index in range(count):
            if index == self.error_after:
                yield json.dumps({"error": {"message": "the engine died", "type": "server_error"}})
                return
            if index == self.breaks_after:
                return
            text = WORDS[index % len(WORDS)]
            last = index == count - 1 and not self.closing_event
            output = {"delta": {"content": text}} if chat else {"text": text}
            yield self._event(output | {"finish_reason": reason if last else None})
        if self.closing_event:
            yield self._event(({"delta": {}} if chat else {"text": ""}) | {"finish_reason": reason})
        if self.usage != "none":
            yield json.dumps({"choices": []} | self._counts(len(prompt), cached, count))
        yield "[DONE]"

    def _event(self, choice: dict[str, Any]) -> str:
        return json.dumps({"id": "x", "choices": [{"index": 0} | choice]}, ensure_ascii=False)

    def _counts(self, prompt: int, cached: int, output: int) -> dict[str, Any]:
        usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": 0}
        match self.usage:
            case "openai":
                return {"usage": usage | {"prompt_tokens_details": {"cached_tokens": cached}}}
            case "uncounted":
                return {"usage": usage | {"prompt_tokens_details": None}}
        return {"timings": {"cache_n": cached, "prompt_n": prompt - cached, "predicted_n": output}}

    def _tokens(self, body: dict[str, Any]) -> list[int]:
        """The prompt as ids: a chat's are the bytes of its messages."""
        if "messages" in body:
            return list("".join(message["content"] for message in body["messages"]).encode())
        return [1, *body["prompt"]] if self.adds_bos else list(body["prompt"])

    def _remember(self, prompt: list[int]) -> int:
        """How many tokens of ``prompt`` an earlier one began with, all but the last at most."""
        hits = [num_shared(prompt[:-1], earlier) for earlier in self._seen] if self.caches else []
        self._seen.append(prompt)
        return max(hits, default=0)


def num_shared(one: list[int], other: list[int]) -> int:
    """How many tokens both begin with."""
    differs = (index for index, (mine, yours) in enumerate(zip(one, other, strict=False)) if mine != yours)
    return next(differs, min(len(one), len(other)))


@contextmanager
def serving(fake: FakeServer) -> Iterator[str]:
    """The base URL at which ``fake`` answers until the block is left."""
    server = uvicorn.Server(uvicorn.Config(fake.app(), log_level="error", lifespan="off"))
    # With the protocol left to the kernel, asyncio would not switch Nagle's delay off.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    listener.listen()  # so that connections made before the server accepts wait instead of failing
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
