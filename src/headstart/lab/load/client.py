"""One OpenAI-compatible server, and how long one streamed request to it takes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import msgspec

from headstart.errors import ConfigError, HeadstartError
from headstart.lab.load import wire
from headstart.lab.load.sse import EventDecoder
from headstart.lab.load.timing import Timing, Usage

Clock = Callable[[], float]


class LoadError(HeadstartError):
    """The server under load could not be reached, or answered what cannot be measured."""


class NotReadyError(LoadError):
    """The server is not there, or says that it cannot serve yet."""


class Server:
    """A server that `connect` found; ``model`` is what is asked for."""

    def __init__(self, http: httpx.AsyncClient, model: str, clock: Clock, extra: Mapping[str, Any]) -> None:
        self.model = model
        self._http = http
        self._clock = clock
        self._extra = extra

    async def complete(self, prompt: Sequence[int], max_tokens: int) -> Timing:
        """Time a greedy completion of exactly these token ids.  Raises ``LoadError``."""
        return await self._measure("/v1/completions", {"prompt": list(prompt)}, max_tokens, len(prompt))

    async def chat(self, messages: Sequence[Mapping[str, str]], max_tokens: int) -> Timing:
        """Time a greedy chat answer.  Raises ``LoadError``."""
        return await self._measure("/v1/chat/completions", {"messages": list(messages)}, max_tokens, None)

    async def _measure(
        self, path: str, prompt: dict[str, Any], max_tokens: int, num_sent: int | None
    ) -> Timing:
        body = {
            "model": self.model,
            **prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }
        request = self._http.build_request("POST", path, json=body)  # encoded before the clock starts
        answer, decoder = _Answer(), EventDecoder()
        with _explained(self._http):
            sent = self._clock()
            response = await self._http.send(request, stream=True)
            try:
                if not response.is_success:
                    await response.aread()
                    raise _refusal(response)
                async for chunk in response.aiter_bytes():
                    now = self._clock()
                    for data in decoder.push(chunk):
                        answer.add(data, now)
            finally:
                await response.aclose()
        answer.check(path)
        return Timing(sent, tuple(answer.arrivals), num_sent, max_tokens, answer.usage, "".join(answer.text))


def _refusal(response: httpx.Response) -> LoadError:
    kind = NotReadyError if response.status_code == httpx.codes.SERVICE_UNAVAILABLE else LoadError
    return kind(f"the server answered {response.status_code}: {wire.reason(response)}")


class _Answer:
    """What the events of one answer have brought so far."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.text: list[str] = []
        self.usage = Usage()
        self._finished = False

    def add(self, data: bytes, now: float) -> None:
        """Take in one event that arrived at ``now``."""
        if data == b"[DONE]":
            self._finished = True
            return
        try:
            event = msgspec.json.decode(data, type=wire.Event)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            shown = data[:80].decode(errors="replace")
            raise LoadError(f"the server streamed what no OpenAI server does ({error}): {shown}") from error
        if event.error is not None:
            raise LoadError(f"the server failed while streaming: {wire.message(event.error)}")
        for choice in event.choices:
            self._finished = self._finished or choice.finish_reason is not None
            self.text.append(choice.output)
            if choice.carries_token(first=not self.arrivals):
                self.arrivals.append(now)
        self.usage = event.updated(self.usage)

    def check(self, path: str) -> None:
        """Raise ``LoadError`` unless this was a whole answer."""
        if not self.arrivals:
            raise LoadError(f"the server answered POST {path} without streaming any output")
        if not self._finished:
            raise LoadError(f"the server broke off its answer to POST {path}")


@asynccontextmanager
async def connect(
    base_url: str,
    *,
    model: str | None = None,
    api_key: str | None = None,
    timeout: float = 300.0,
    ignore_eos: bool = False,
    cache_salt: str | None = None,
    clock: Clock = time.perf_counter,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[Server]:
    """A server ready to be measured, its connections kept open between requests.

    ``base_url`` may end in ``/v1`` or not; ``model`` is the first one the server lists unless given;
    at most ``timeout`` seconds may pass without a byte.  With ``ignore_eos`` answers are as long as asked
    for, where the server knows this field (headstart, vLLM, llama.cpp); others may refuse it.  ``cache_salt``
    keeps what is asked here apart from what others ask (headstart, vLLM).

    Raises ``ConfigError`` for an address that is none, ``NotReadyError`` for a server that is not there,
    ``LoadError`` for one that is not OpenAI-compatible.
    """
    url = _checked(base_url)
    extra: dict[str, Any] = {"ignore_eos": True} if ignore_eos else {}
    if cache_salt is not None:
        extra["cache_salt"] = cache_salt
    async with httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=timeout,
        # A connection for each request: servers hang up on idle and on much used ones (llama.cpp after a
        # dozen requests), and the request that meets that is lost.  The default pool would queue the 101st.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        # A proxy from the environment would stand between us and a server on this very machine.
        trust_env=url.host not in ("localhost", "127.0.0.1", "::1"),
        transport=transport,
    ) as http:
        yield Server(http, model or await _first_model(http), clock, extra)


def _checked(base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(base_url.rstrip("/").removesuffix("/v1"))
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"a base URL looks like http://127.0.0.1:8000, not {base_url!r}")
    return url


async def _first_model(http: httpx.AsyncClient) -> str:
    with _explained(http):
        response = await http.get("/v1/models")
    try:
        listed = msgspec.json.decode(response.content, type=wire.ModelList)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        listed = wire.ModelList()
    if response.is_success and listed.data:
        return listed.data[0].id
    said = (
        "lists no model" if response.is_success else f"says {response.status_code}: {wire.reason(response)}"
    )
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        raise NotReadyError(f"{_name(http)} is not ready: GET /v1/models {said}")
    raise LoadError(f"{_name(http)} is not an OpenAI-compatible server: GET /v1/models {said}")


@contextmanager
def _explained(http: httpx.AsyncClient) -> Iterator[None]:
    """Say in a sentence what the network did."""
    try:
        yield
    except httpx.ConnectError as error:
        raise NotReadyError(f"cannot reach {_name(http)}: is a server running there?") from error
    except httpx.TimeoutException as error:
        raise LoadError(f"{_name(http)} sent nothing for {http.timeout.read:g} seconds") from error
    except httpx.HTTPError as error:
        raise LoadError(
            f"the connection to {_name(http)} broke: {str(error) or type(error).__name__}"
        ) from error


def _name(http: httpx.AsyncClient) -> str:
    return str(http.base_url).rstrip("/")
