"""Chat templates that come with requests: compiled once each, and the last few are kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from headstart.errors import CorruptModelError, RequestError
from headstart.text.template import ChatTemplate

MAX_LENGTH = 2**16
"""Characters of a template; the longest that models are published with have a third of that."""
MAX_KEPT = 8
MAX_SECONDS = 2.0
MAX_PROMPT = 2**24


class RequestTemplates:
    """Templates by their source, and by the named tokens of the model."""

    def __init__(self) -> None:
        self._compiled = lru_cache(maxsize=MAX_KEPT)(_compile)

    def get(self, source: str, named: Mapping[str, str]) -> ChatTemplate:
        """The template ``source``.  Raises ``RequestError`` if it is none, or too long."""
        if len(source) > MAX_LENGTH:
            raise _refused(f"may have at most {MAX_LENGTH:,} characters, got {len(source):,}")
        return self._compiled(source, tuple(named.items()))


def _compile(source: str, named: tuple[tuple[str, str], ...]) -> ChatTemplate:
    try:
        return ChatTemplate(
            source,
            named=dict(named),
            seconds=MAX_SECONDS,
            max_length=MAX_PROMPT,
            called="the request's chat template",
        )
    except CorruptModelError as error:
        raise _refused(f"is no template: {error.__cause__}") from error


def _refused(complaint: str) -> RequestError:
    return RequestError(f"chat_template {complaint}", param="chat_template", code="invalid_value")
