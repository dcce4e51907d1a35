"""What servers send: OpenAI's shapes, and llama.cpp's ``timings`` beside them.

Unknown fields are ignored, so that any server's events can be read.
"""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from headstart.lab.load.timing import Usage


class Model(msgspec.Struct, frozen=True):
    """An entry of ``/v1/models``."""

    id: str


class ModelList(msgspec.Struct, frozen=True):
    """The answer of ``/v1/models``."""

    data: list[Model] = []


class Delta(msgspec.Struct, frozen=True):
    """What a chat event adds."""

    content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """What an event adds to the answer: ``text`` in completions, ``delta`` in chat."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def output(self) -> str:
        """The new text, possibly none."""
        return (self.text if self.delta is None else self.delta.content) or ""

    def carries_token(self, *, first: bool) -> bool:
        """Whether this stands for generated tokens; ``first`` if none came before.

        A completion's token whose text is held back (half a character) is an event without text.
        Two others are empty as well and bring no token: chat's opening event, which only names the
        role, and a closing event of its own.
        """
        if self.output:
            return True
        return self.delta is None and (first or self.finish_reason is None)


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """OpenAI's; vLLM sends null unless asked on its command line."""

    cached_tokens: int | None = None


class UsageFields(msgspec.Struct, frozen=True):
    """OpenAI's token counts."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None


class LlamaTimings(msgspec.Struct, frozen=True):
    """llama.cpp's: cached and computed tokens of the prompt, and generated ones."""

    cache_n: int | None = None
    prompt_n: int | None = None
    predicted_n: int | None = None


class Event(msgspec.Struct, frozen=True):
    """One event of a streamed answer."""

    choices: list[Choice] = []
    usage: UsageFields | None = None
    timings: LlamaTimings | None = None
    error: Any = None

    def updated(self, known: Usage) -> Usage:
        """``known`` and what this event reports; ``usage`` is believed before ``timings``."""
        usage, timings = self.usage or UsageFields(), self.timings or LlamaTimings()
        details = usage.prompt_tokens_details or PromptTokensDetails()
        computed, cached = timings.prompt_n, timings.cache_n
        prompt = None if computed is None or cached is None else computed + cached
        return Usage(
            prompt_tokens=_first(usage.prompt_tokens, known.prompt_tokens, prompt),
            cached_tokens=_first(details.cached_tokens, known.cached_tokens, cached),
            completion_tokens=_first(usage.completion_tokens, known.completion_tokens, timings.predicted_n),
        )


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def reason(response: httpx.Response) -> str:
    """A failed response in the server's own words, whichever shape it gives them in."""
    try:
        body = response.json()
    except ValueError:
        return response.text.strip()[:200] or response.reason_phrase
    if isinstance(body, dict):
        return message(body.get("error") or body.get("detail") or body)
    return message(body)


def message(error: object) -> str:
    """The sentence in an error object, or the object itself."""
    return str(error["message"]) if isinstance(error, dict) and "message" in error else str(error)
