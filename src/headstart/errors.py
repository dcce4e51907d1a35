"""Every exception headstart raises on purpose.

::

    HeadstartError
    ├── ConfigError              an option that makes no sense, or two that contradict each other
    ├── ModelError               a model that cannot be served
    │   ├── ModelNotFoundError       no such name, directory or file
    │   ├── DownloadError            the files could not be fetched
    │   ├── CorruptModelError        wrong checksum, truncated file, missing tensor
    │   └── UnsupportedModelError    an architecture or tensor type we do not know
    ├── RequestError             a request that cannot be served as asked; the caller can fix it
    ├── LogError                 a decision log that cannot be read
    │   └── TraceError               recorded traffic of any format
    ├── LabError                 a replay that could not be finished
    ├── LintError                what is to be checked is neither a request's body nor a template
    ├── EventError               KV events that cannot be read
    ├── EngineError              the engine failed while serving
    │   └── EngineDeadError          its process is gone
    └── CacheError               a law of the cache is broken, or its door was misused

A lack of room is never an exception: it is a value (``None`` from ``allocate_slots``).
"""

from __future__ import annotations

import reprlib
from itertools import islice
from typing import Any


class _Quotes(reprlib.Repr):
    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        """Without sorting a million keys first."""
        return super().repr_dict(dict(islice(x.items(), self.maxdict + 1)), level)


class _JsonQuotes(_Quotes):
    """With JSON's words for what has another one in Python; strings keep their single quotes."""

    def repr_NoneType(self, _x: None, _level: int) -> str:  # noqa: N802 - reprlib looks for the type's name
        return "null"

    def repr_bool(self, x: bool, _level: int) -> str:
        return "true" if x else "false"


_LONGEST_STRING, _LONGEST_QUOTE = 120, 160
_QUOTES, _JSON_QUOTES = _Quotes(), _JsonQuotes()
_QUOTES.maxstring = _JSON_QUOTES.maxstring = _LONGEST_STRING


def shown(value: object) -> str:
    """``value`` as a sentence may quote it: its ``repr``, shortened where somebody sent a novel."""
    return _shortened(_QUOTES.repr(value))


def shown_json(value: object) -> str:
    """As `shown`, for a value that came as JSON: ``null``, ``true`` and ``false``."""
    return _shortened(_JSON_QUOTES.repr(value))


def _shortened(quote: str) -> str:
    return quote if len(quote) <= _LONGEST_QUOTE else f"{quote[:_LONGEST_QUOTE]}…"


class HeadstartError(Exception):
    """Base of all errors raised on purpose; its text is one sentence for a person."""


class ConfigError(HeadstartError):
    """An option that makes no sense, or two that contradict each other."""


class ModelError(HeadstartError):
    """A model that cannot be served."""


class ModelNotFoundError(ModelError):
    """No built-in name, directory or file of that name."""


class DownloadError(ModelError):
    """The model's files could not be fetched."""


class CorruptModelError(ModelError):
    """A wrong checksum, a truncated file or a missing tensor."""


class UnsupportedModelError(ModelError):
    """An architecture, tensor type or option of a model that headstart does not know."""


class RequestError(HeadstartError):
    """A request that cannot be served as asked.

    ``param`` names the field at fault and ``code`` is a stable word for programs, both as in
    OpenAI's error object; ``status`` is the HTTP status that a server answers with.
    """

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


class LogError(HeadstartError):
    """A decision log that cannot be read: no such log, another format, or damaged."""


class TraceError(LogError):
    """Recorded traffic that cannot be read: no such file, no known format, or a malformed line."""


class LabError(HeadstartError):
    """A replay that could not be finished."""


class LintError(HeadstartError):
    """A file to check that is neither a request's body nor a prompt's template."""


class EventError(HeadstartError):
    """Bytes that are no batch of KV events."""


class EngineError(HeadstartError):
    """The engine failed while serving; the request may be tried again."""


class EngineDeadError(EngineError):
    """The engine's process is gone."""


class CacheError(HeadstartError):
    """A law of the cache is broken, or its door was used in a way that has no meaning."""
