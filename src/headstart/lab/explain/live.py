"""Asks a running headstart why one request missed."""

from __future__ import annotations

from typing import Any, Literal

import httpx
import msgspec

from headstart.errors import HeadstartError

_LOCAL = ("localhost", "127.0.0.1", "::1")


class LiveError(HeadstartError):
    """A server could not be asked, or would not answer."""


class LiveReason(msgspec.Struct, frozen=True):
    """So many tokens missed for this reason; the words are the server's."""

    reason: str
    tokens: int
    meaning: str
    advice: str


class LivePrompt(msgspec.Struct, frozen=True):
    """One prompt of the request; only the first two fields mean something until it is reported."""

    index: int
    status: Literal["complete", "pending"]
    prompt_tokens: int = 0
    hit_tokens: int = 0
    missed_tokens: int = 0
    reasons: tuple[LiveReason, ...] = ()
    first_difference_at: int | None = None
    evicted_s: float | None = None


class LiveExplanation(msgspec.Struct, frozen=True):
    """The server's answer; ``note`` says why something is pending."""

    request_id: str
    status: Literal["complete", "pending"]
    prompts: tuple[LivePrompt, ...]
    note: str | None = None


def explain_url(given: str) -> httpx.URL:
    """The route's address from what people type: a host, or a base URL with ``/v1`` or not.

    Raises ``LiveError`` for what is no address.
    """
    text = given.strip()
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
    except httpx.InvalidURL as error:
        raise LiveError(f"{given!r} is no address: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise LiveError(f"{given!r} is no http address, such as http://127.0.0.1:8000")
    path = url.path.rstrip("/").removesuffix("/v1")
    return url.copy_with(path=f"{path}/v1/cache/explain", query=None, fragment=None)


def ask(
    url: httpx.URL, request_id: str, *, api_key: str | None = None, timeout: float = 10.0
) -> LiveExplanation:
    """Why the request missed.  Raises ``LiveError`` with the server's own sentence, where it has one."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        # A proxy from the environment would stand between us and a server on this very machine.
        with httpx.Client(headers=headers, timeout=timeout, trust_env=url.host not in _LOCAL) as http:
            response = http.post(url, json={"request_id": request_id})
    except httpx.HTTPError as error:
        raise LiveError(f"{url} cannot be reached: {str(error) or type(error).__name__}") from error
    if not response.is_success:
        raise LiveError(_refusal(url, response))
    try:
        return msgspec.json.decode(response.content, type=LiveExplanation)
    except msgspec.DecodeError as error:
        raise LiveError(f"{url} answered something else than an explanation: {error}") from error


def _refusal(url: httpx.URL, response: httpx.Response) -> str:
    try:
        told: Any = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        told = None
    if isinstance(told, str):
        return told
    if response.status_code == httpx.codes.NOT_FOUND:
        return f"there is no {url} (404): only headstart explains live requests"
    return f"{url} answered {response.status_code}"
