"""Fetches a metrics page, and says in words why it could not."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import httpx

from headstart.lab.metrics.exposition import Exposition, MetricsError

_LAST_PORT = 65_535
_LOCAL = ("localhost", "127.0.0.1", "::1")


def metrics_url(given: str) -> httpx.URL:
    """The page's address from what people type: a host, a base URL with ``/v1`` or not, or the page's own.

    Raises ``MetricsError`` for what is no address.
    """
    text = given.strip()
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
    except httpx.InvalidURL as error:
        raise MetricsError(f"{given!r} is no address: {error}") from error
    if url.scheme not in ("http", "https") or not url.host or not 0 < (url.port or 80) <= _LAST_PORT:
        raise MetricsError(f"{given!r} is no http address, such as http://127.0.0.1:8000")
    path = url.path.rstrip("/").removesuffix("/v1")
    return url.copy_with(path=path or "/metrics") if path in ("", "/metrics") else _under(url, path)


def _under(url: httpx.URL, path: str) -> httpx.URL:
    return url.copy_with(path=path if path.endswith("/metrics") else f"{path}/metrics")


class Scraper:
    """Reads one page again and again, over one connection.  Close it, or use it in a ``with``.

    At most ``timeout`` seconds may pass without a byte.
    """

    def __init__(
        self,
        url: httpx.URL,
        *,
        api_key: str | None = None,
        timeout: float = 10.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url
        self._http = httpx.Client(
            headers={
                b"Accept": b"text/plain",
                **({b"Authorization": f"Bearer {api_key}".encode()} if api_key else {}),
            },
            timeout=timeout,
            follow_redirects=True,
            # A proxy from the environment would stand between us and a server on this very machine.
            trust_env=url.host not in _LOCAL,
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def read(self) -> Exposition:
        """The page as of now.  Raises ``MetricsError``."""
        try:
            response = self._http.get(self.url)
        except httpx.TimeoutException as error:
            raise MetricsError(f"{self.url} did not answer in time: see --timeout") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise MetricsError(
                f"{self.url} cannot be reached: {str(error) or type(error).__name__}"
            ) from error
        if not response.is_success:
            raise MetricsError(_refusal(self.url, response.status_code))
        text = response.text
        start = text[:200].lstrip().lower()
        if start.startswith(("<!doctype", "<html", "<?xml", "<head", "<body")):
            raise MetricsError(f"{self.url} is a web page and no metrics: is that the server's own address?")
        if start.startswith(("{", "[")):
            raise MetricsError(f"{self.url} answers JSON and no metrics: is that the server's own address?")
        return Exposition.parse(text, str(self.url))


def _refusal(url: httpx.URL, status: int) -> str:
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return f"{url} wants a key ({status}): give it with --api-key"
    if status == httpx.codes.NOT_FOUND:
        return f"there is no page {url} (404): is the port right? SGLang has one with --enable-metrics only"
    return f"{url} answered {status} {httpx.codes.get_reason_phrase(status)}".rstrip()
