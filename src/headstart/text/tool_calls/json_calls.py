"""Calls as JSON: ``{"name": …, "arguments": {…}}``, one or a list of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass

from headstart.text.tool_calls.parts import Output
from headstart.text.tool_calls.reader import END, Broken, Characters, Reading

MAX_NAME = 256
"""Characters; no tool has a longer name, so nothing longer is held back for one."""

_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("id", "type")
_OUTSIDE_STRINGS = frozenset('{}[]:,"+-.0123456789aeflnrstuE \t\n\r')


def calls(chars: Characters, out: Output) -> Reading[None]:
    """A call, or a list of calls, of whichever tools.  Raises `Broken` at what is none."""
    if (yield from chars.skip_space()) != "[":
        yield from call(chars, out)
        return
    yield from chars.next()
    if (yield from chars.skip_space()) == "]":
        yield from chars.next()
        return
    while True:
        yield from call(chars, out)
        yield from chars.skip_space()
        if (yield from chars.next()) == "]":
            return
        chars.back()
        yield from chars.literal(",")
        yield from chars.skip_space()


def call(chars: Characters, out: Output, known: Collection[str] | None = None) -> Reading[None]:
    """One call.  Raises `Broken` at what is none, and behind the arguments at what does not end it.

    With ``known`` names it is one only if it has one of them, and arguments.
    """
    yield from chars.literal("{")
    found = _Found(known)
    while True:
        yield from chars.skip_space()
        yield from _entry(chars, out, found)
        yield from chars.skip_space()
        if (yield from chars.next()) == "}":
            break
        chars.back()
        yield from chars.literal(",")
    if not found.is_open:
        found.open(chars, out)
        out.arguments(found.arguments or "{}")
        out.close()
    chars.release()


def stream_object(chars: Characters, out: Output) -> Reading[None]:
    """The object that an open call's arguments are, told as it is read, broken or not, to its last bracket.

    Raises `Broken` where it ends before that.
    """
    complete = yield from _scan(chars, out.arguments, strict=False)
    chars.release()
    if not complete:
        raise Broken
    out.close()


@dataclass(slots=True)
class _Found:
    """What is known of a call so far."""

    known: Collection[str] | None
    name: str | None = None
    arguments: str | None = None
    is_open: bool = False

    def open(self, chars: Characters, out: Output) -> None:
        if self.name is None or (self.known is not None and self.arguments is None):
            raise Broken
        chars.release()
        out.open(self.name)
        self.is_open = True


def _entry(chars: Characters, out: Output, found: _Found) -> Reading[None]:
    """One key and its value."""
    key = yield from _string(chars, MAX_NAME)
    yield from chars.skip_space()
    yield from chars.literal(":")
    first = yield from chars.skip_space()
    if key == "name" and found.name is None:
        found.name = yield from _string(chars, MAX_NAME)
        if not found.name or (found.known is not None and found.name not in found.known):
            raise Broken
    elif key in _ARGUMENTS and found.arguments is None:
        if first == "{" and found.name is not None:
            found.arguments = ""
            found.open(chars, out)
            yield from stream_object(chars, out)
        else:
            found.arguments = yield from _held_arguments(chars, first)
    elif key in _OTHERS and not found.is_open:
        yield from _string(chars, MAX_NAME)
    else:
        raise Broken


def _held_arguments(chars: Characters, first: str) -> Reading[str]:
    """Arguments that come before the name, or are a string with their JSON, or null."""
    if first == "{":
        raw: list[str] = []
        if not (yield from _scan(chars, raw.append, strict=True)):
            raise Broken
        return "".join(raw)
    if first == "n":
        yield from chars.literal("null")
        return "{}"
    text = yield from _string(chars)
    try:
        is_object = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise Broken
    return text


def _string(chars: Characters, most: int | None = None) -> Reading[str]:
    """A JSON string, as what it says; of at most so many characters."""
    yield from chars.literal('"')
    raw: list[str] = []
    escaped = False
    while (char := (yield from chars.next())) != '"' or escaped:
        if char < " " or (most is not None and len(raw) >= most):  # END is less, too
            chars.back()
            raise Broken
        raw.append(char)
        escaped = char == "\\" and not escaped
    try:
        text: str = json.loads(f'"{"".join(raw)}"')
        text.encode()  # half a surrogate pair is no text
    except ValueError as error:
        raise Broken from error
    return text


def _scan(chars: Characters, emit: Callable[[str], None], *, strict: bool) -> Reading[bool]:
    """An object to its last bracket, whatever is in it; whether it came to that.

    It ends early at a character that JSON has nowhere outside strings; unless ``strict``, only at a ``<``,
    which begins the marker that a model, sure that it has ended the object, writes next.
    """
    depth, in_string, escaped = 0, False, False
    while True:
        char = yield from chars.next()
        stops = char not in _OUTSIDE_STRINGS if strict else char == "<"
        if char == END or (stops and not in_string):
            chars.back()
            return False
        emit(json.dumps(char)[1:-1] if in_string and char < " " else char)
        if in_string:
            in_string = char != '"' or escaped
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            if depth == 0:
                return True
