"""Fields of a body that no route knows: ignored and named in a header, or refused with ``--strict``.

One place for all routes: whatever pydantic model a route declares as its body says what is known.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Annotated, Any, Union
from urllib.parse import quote

from pydantic import BaseModel
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headstart.errors import RequestError, shown

HEADER = "X-Headstart-Ignored-Fields"
MAX_NAMED = 16
"""So many fields are named in the header; where there are more, it ends with ``...``."""
MAX_NAME = 80
"""Characters of a field's name that are told."""
MAX_OBJECTS = 20_000
MAX_DEPTH = 8
"""So many objects of a body are looked at, and so deep: enough for every honest one."""

_SCOPE_KEY = "headstart.ignored_fields"
_NAME_CHARACTERS = "._-[]$"  # beside letters and digits; others are percent-encoded


@dataclass(frozen=True, slots=True)
class Unknown:
    """A field that is not among the ``known`` ones of its object; ``path`` is like ``messages[0].colour``."""

    name: str
    path: str
    known: tuple[str, ...]


class IgnoredFields:
    """ASGI middleware that names in a header what `watch` found to be ignored, on streams and errors, too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give `watch` a place to write to, and read it when the answer begins."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        paths: list[str] = []
        scope[_SCOPE_KEY] = paths

        async def named(message: Message) -> None:
            if paths and message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = header_of(paths)
            await send(message)

        await self._app(scope, receive, named)


def watch(*, strict: bool) -> Callable[[Request], Awaitable[None]]:
    """A dependency for all routes: looks for unknown fields in the bodies of those that take one.

    With ``strict`` it raises `RequestError` for the first; else `IgnoredFields` tells their names.
    """

    async def look(request: Request) -> None:
        if not (models := _bodies_of(request.scope["endpoint"])) or not await request.body():
            return
        try:
            body = await request.json()  # has been read: FastAPI and we share one request
        except (ValueError, RecursionError):  # it was not said to be JSON, which `require_json` refuses next
            return
        for found in islice(unknown_fields(models, body), MAX_NAMED + 1):
            if strict:
                raise _refusal(found)
            request.scope[_SCOPE_KEY].append(found.path)

    return look


def unknown_fields(models: tuple[type[BaseModel], ...], body: Any) -> Iterator[Unknown]:
    """The fields of ``body`` that a model does not know; of several models, of the one it fits best.

    Objects whose model takes any field, or refuses unknown ones itself, are not looked into.
    """
    left = MAX_OBJECTS

    def search(models: tuple[type[BaseModel], ...], value: Any, path: str, depth: int) -> Iterator[Unknown]:
        nonlocal left
        if not models or depth > MAX_DEPTH or left <= 0:
            return
        if isinstance(value, list):
            for number, item in enumerate(islice(value, left)):
                yield from search(models, item, f"{path}[{number}]", depth + 1)
        elif isinstance(value, dict):
            left -= 1
            fields = min(map(_fields_of, models), key=lambda known: sum(name not in known for name in value))
            below = f"{path}." if path else ""
            for name, item in value.items():
                if name in fields:
                    yield from search(fields[name], item, below + name, depth + 1)
                elif fields:
                    yield Unknown(name, f"{below}{_told(name)}", tuple(fields))

    return search(models, body, "", 0)


def header_of(paths: list[str]) -> str:
    """``colour, messages[0].mood``; what is no letter, digit, dot, hyphen or bracket is percent-encoded."""
    # A header that ends with a space is none; so the empty name has quotes.
    names = [quote(path, safe=_NAME_CHARACTERS) or '""' for path in paths[:MAX_NAMED]]
    short = [name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}..." for name in names]
    return ", ".join([*short, "..."] if len(paths) > MAX_NAMED else short)


def _told(name: str) -> str:
    """The name, shortened, and without halves of surrogate pairs, which no answer could hold."""
    return name[:MAX_NAME].encode(errors="replace").decode()


def _refusal(found: Unknown) -> RequestError:
    near = difflib.get_close_matches(found.name[:MAX_NAME], found.known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return RequestError(
        f"{shown(found.name)} is no field that this server knows{hint} "
        "(it runs with --strict, and refuses unknown fields)",
        param=found.path,
        code="unknown_parameter",
    )


@cache
def _bodies_of(endpoint: Callable[..., Any]) -> tuple[type[BaseModel], ...]:
    """The models of the body that a route's function takes; FastAPI reads the same annotations."""
    hints = typing.get_type_hints(endpoint)
    hints.pop("return", None)
    return tuple(model for hint in hints.values() for model in _models_in(hint) or ())


@cache
def _fields_of(model: type[BaseModel]) -> Mapping[str, tuple[type[BaseModel], ...]]:
    """The fields that a model knows, each with the models of what may be in it; empty where any is taken."""
    if model.model_config.get("extra", "ignore") != "ignore":
        return {}
    fields = {}
    for name, field in model.model_fields.items():
        models = tuple(_models_in(field.annotation) or ())
        for spelling in (name, field.alias, field.validation_alias):
            if isinstance(spelling, str):
                fields[spelling] = models
    return fields


def _models_in(annotation: Any) -> list[type[BaseModel]] | None:
    """The models that a value of this type may be, or a list of; None where it may be any object."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is dict or origin is dict:
        return None
    if origin is Annotated:
        return _models_in(arguments[0])
    if origin in (Union, types.UnionType, list, tuple):
        found = [_models_in(argument) for argument in arguments]
        if any(models is None for models in found):
            return None
        return [model for models in found for model in models or ()]
    return []
