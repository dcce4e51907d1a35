"""The server under audit: any that speaks OpenAI's API, as far as its endpoints tell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from headstart.errors import HeadstartError
from headstart.lab.metrics import Engine, Exposition, Scraper, Window, metrics_url
from headstart.lab.metrics.engines import engine_of
from headstart.lab.metrics.exposition import MetricsError

_LOCAL = ("localhost", "127.0.0.1", "::1")
Messages = Sequence[Mapping[str, Any]]


class AuditError(HeadstartError):
    """A server that could not be asked at all."""


class RefusedError(AuditError):
    """It answered a request with an error; ``status`` is HTTP's."""

    def __init__(self, path: str, status: int, said: str) -> None:
        super().__init__(f"{path} says {status}: {said}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer's usage says; ``cached`` is None where it has no ``cached_tokens``."""

    prompt: int
    cached: int | None


class Target:
    """One server.  Close it, or use it in a ``with``.

    ``api_key`` is sent with every request, ``other_api_key`` where another caller is played, and
    ``admin_api_key`` to read the metrics, which are at ``metrics`` unless at the server's own address.
    ``model`` is the first that is listed unless given.

    Raises `AuditError` for a server that is not there, or lists no model.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        other_api_key: str | None = None,
        admin_api_key: str | None = None,
        metrics: str | None = None,
        timeout: float = 120.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        page = metrics_url(url)
        self._metrics = page if metrics is None else metrics_url(metrics)
        self.url = str(page.copy_with(path=page.path.removesuffix("/metrics"))).rstrip("/")
        self.api_key = api_key
        self.other_api_key = other_api_key
        self._admin_api_key = admin_api_key or api_key
        self._timeout = timeout
        self._transport = transport
        self._http = httpx.Client(
            base_url=self.url, timeout=timeout, trust_env=page.host not in _LOCAL, transport=transport
        )
        self.models = self._models()
        self.model = model or self.models[0]["id"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    @property
    def max_model_len(self) -> int | None:
        """The most tokens of prompt and answer, if it says so."""
        for card in self.models:
            if card.get("id") == self.model and isinstance(card.get("max_model_len"), int):
                return int(card["max_model_len"])
        return None

    def without_key(self) -> bool:
        """Whether it lists its models to a caller without a key."""
        return self._send("GET", "/v1/models", None, key=None).status_code == httpx.codes.OK

    def ask(
        self, prompt: str, *, salt: str | None = None, key: str | None = None, stream: bool = False
    ) -> Usage:
        """Have a chat answer of one token; ``key`` is another than the usual one.

        Raises `RefusedError`, and `AuditError` for an answer without usage.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 1,
            "temperature": 0,
        }
        if salt is not None:
            body["cache_salt"] = salt
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        response = self._send("POST", "/v1/chat/completions", body, key=key or self.api_key)
        answer = _last_event(response.text) if stream else _object(response)
        if response.is_error:
            raise RefusedError("/v1/chat/completions", response.status_code, _reason(response))
        usage = answer.get("usage")
        if not isinstance(usage, dict) or not isinstance(usage.get("prompt_tokens"), int):
            raise AuditError("its answers have no usage.prompt_tokens")
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return Usage(usage["prompt_tokens"], cached if isinstance(cached, int) else None)

    def tokens(
        self, messages: Messages, *, generation_prompt: bool, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int] | None:
        """The conversation's token ids by ``/tokenize``; None where it cannot do that."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "add_generation_prompt": generation_prompt,
        }
        if tools is not None:
            body["tools"] = tools
        response = self._send("POST", "/tokenize", body, key=self.api_key)
        tokens = {} if response.is_error else _object(response)
        found = tokens.get("tokens")
        return found if isinstance(found, list) and all(isinstance(one, int) for one in found) else None

    def text(self, tokens: Sequence[int]) -> str | None:
        """The tokens as text by ``/detokenize``; None where it cannot do that."""
        body = {"model": self.model, "tokens": list(tokens)}
        response = self._send("POST", "/detokenize", body, key=self.api_key)
        found = None if response.is_error else _object(response).get("prompt")
        return found if isinstance(found, str) else None

    def counted(self) -> Window:
        """What its metrics have counted since its start.  Raises ``MetricsError`` if they cannot be read."""
        with Scraper(
            self._metrics,
            api_key=self._admin_api_key,
            timeout=self._timeout,
            transport=self._transport,
        ) as scraper:
            page = scraper.read()
        nothing = Exposition({}, frozenset())
        return Window(self.url, engine_of(page, self.url), nothing, page, 0.0, self._model_of(page))

    def engine(self) -> Engine | None:
        """Which engine it is, by its metrics."""
        try:
            return self.counted().engine
        except MetricsError:
            return None

    def _model_of(self, page: Exposition) -> str | None:
        named = {dict(labels).get("model_name") for found in page.series.values() for labels in found}
        return self.model if self.model in named else None

    def _models(self) -> list[dict[str, Any]]:
        response = self._send("GET", "/v1/models", None, key=self.api_key)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            what = "wants a key: give --api-key" if self.api_key is None else "does not know this --api-key"
            raise AuditError(f"{self.url} {what} ({_reason(response)})")
        if response.is_error:
            raise RefusedError("/v1/models", response.status_code, _reason(response))
        listed = _object(response).get("data")
        if not isinstance(listed, list) or not listed or not all(isinstance(one, dict) for one in listed):
            raise AuditError(f"{self.url} lists no model at /v1/models: is it an OpenAI-compatible server?")
        return listed

    def _send(self, method: str, path: str, body: Any, *, key: str | None) -> httpx.Response:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            return self._http.request(method, path, json=body, headers=headers)
        except httpx.ConnectError as error:
            raise AuditError(f"cannot reach {self.url}: is a server running there?") from error
        except httpx.TimeoutException as error:
            raise AuditError(f"{self.url} did not answer {path} in {self._timeout:g} seconds") from error
        except httpx.HTTPError as error:
            raise AuditError(
                f"the connection to {self.url} broke: {str(error) or type(error).__name__}"
            ) from error


def _object(response: httpx.Response) -> dict[str, Any]:
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _last_event(text: str) -> dict[str, Any]:
    """The last event of a stream that has a usage."""
    for line in reversed(text.splitlines()):
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            if event.get("usage"):
                return dict(event)
    return {}


def _reason(response: httpx.Response) -> str:
    error = _object(response).get("error")
    said = error.get("message") if isinstance(error, dict) else None
    return str(said or response.reason_phrase)
