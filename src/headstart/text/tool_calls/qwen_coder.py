"""Qwen3-Coder's form: tags for the function and each of its parameters, and values as they are."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from headstart.text.tool_calls.hermes import BEGIN, FINISH, Hermes, Tagged
from headstart.text.tool_calls.json_calls import MAX_NAME, calls
from headstart.text.tool_calls.parts import Output
from headstart.text.tool_calls.reader import END, Broken, CallParser, Characters, Reading
from headstart.text.tool_calls.tools import Tool

FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"


class QwenCoder(Hermes):
    """``<tool_call><function=NAME><parameter=KEY>value</parameter>…</function></tool_call>``.

    A value that its tool's schema calls a string is one, whatever it looks like; others are JSON where they
    can be.  A call that is asked for is written, and read, as Hermes' JSON: values without quotes are more
    than a schema can be held against.
    """

    name = "qwen3_coder"
    markers = frozenset({BEGIN, FINISH})

    def parser(
        self,
        tools: Sequence[Tool],
        hidden: Collection[str] = (),
        *,
        several: bool = True,
    ) -> CallParser:
        """A reader of calls of whichever tools; those that were given tell the types of their arguments."""
        return CallParser({"<": _Tagged({tool.name: tool for tool in tools}).start}, hidden, several=several)


class _Tagged(Tagged):
    def __init__(self, tools: Mapping[str, Tool]) -> None:
        super().__init__()
        self._tools = tools

    def inside(self, chars: Characters, out: Output) -> Reading[None]:
        if (yield from chars.skip_space()) != "<":
            yield from calls(chars, out)
            return
        yield from chars.literal(FUNCTION)
        name = yield from _until_bracket(chars)
        chars.release()
        out.open(name)
        out.arguments("{")
        tool = self._tools.get(name) or Tool(name)
        separator = ""
        while True:
            yield from chars.skip_space()
            yield from chars.literal("<")
            if (yield from chars.peek()) == "/":
                yield from chars.literal(END_FUNCTION[1:])
                break
            yield from chars.literal(PARAMETER[1:])
            key = yield from _until_bracket(chars)
            chars.release()
            out.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            yield from _value(chars, out, tool.properties.get(key))
            separator = ", "
        chars.release()
        out.arguments("}")
        out.close()


def _until_bracket(chars: Characters) -> Reading[str]:
    """A name, up to and with ``>``."""
    name: list[str] = []
    while (char := (yield from chars.next())) != ">":
        if char in (END, "<", "\n") or len(name) >= MAX_NAME:
            chars.back()
            raise Broken
        name.append(char)
    if not name:
        raise Broken
    return "".join(name)


def _value(chars: Characters, out: Output, schema: Any) -> Reading[None]:
    """One value and its end tag; the line breaks next to the tags are not part of it."""
    is_text = isinstance(schema, Mapping) and schema.get("type") == "string"
    if is_text:
        out.arguments('"')
    collected: list[str] = []
    if (yield from chars.peek()) == "\n":
        yield from chars.next()
    chars.release()
    while (piece := (yield from _piece(chars))) is not None:
        if is_text:
            out.arguments(json.dumps(piece, ensure_ascii=False)[1:-1])
        else:
            collected.append(piece)
    out.arguments('"' if is_text else _as_json("".join(collected)))


def _piece(chars: Characters) -> Reading[str | None]:
    """More of a value; None at its end tag.  Raises `Broken` where the text ends before that."""
    yield from chars.try_literal("\n")
    if (yield from chars.try_literal(END_PARAMETER)):
        chars.release()
        return None
    piece = chars.release()
    if not piece:
        piece = yield from chars.next()
        if piece == END:
            raise Broken
        chars.release()
    return piece


def _as_json(value: str) -> str:
    """A value as JSON: what it is, or else a string of it."""
    try:
        json.loads(value, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(value, ensure_ascii=False)
    return value.strip()


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")
