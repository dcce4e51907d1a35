"""Where chat templates run: they are code from strangers."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Sized
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

# What an expression in a template can raise besides jinja's own errors: None + "text", 1 / 0, "a" * 10**12.
FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    MemoryError,
)

_MAX_REPEATED = 2**20  # characters or entries
_MAX_INDENT = 16
_WIDE_PERCENT = re.compile(r"%[^A-Za-z%]*([0-9]{5}|\*)")
_WIDE_FORMAT = re.compile(r"\{[^}]*[0-9]{5}")
_PADDING = {"center", "expandtabs", "format", "format_map", "ljust", "rjust", "zfill"}  # methods of strings
_FOR_PAGES = ("center", "format", "pprint", "urlize", "wordwrap", "xmlattr")
"""Filters that no prompt needs, and each of which can take minutes or gigabytes at once."""
_MAX_BITS = 2**16  # of a number


class _GenerationBlock(Extension):
    """``{% generation %}…{% endgeneration %}`` marks an answer for training; here it is only a scope."""

    tags = {"generation"}  # noqa: RUF012 - declared by the base class

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja as Hugging Face's templates expect it: block trimming, loop controls, three helpers.

    And with a clock, which a template looks at in each turn of a loop and at each call.

    The clock is the thread's own: templates that are rendered side by side do not use up each other's time.
    """

    # A power or a repetition is one instruction, which no clock interrupts.
    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
        )
        self._running = threading.local()
        self.globals.update(
            raise_exception=_raise_exception, strftime_now=lambda pattern: now().strftime(pattern)
        )
        self.filters["tojson"] = _to_json
        for name in _FOR_PAGES:
            del self.filters[name]
        del self.globals["lipsum"]

    def allow(self, seconds: float) -> None:
        """From now on, so much time for what this thread renders."""
        self._running.seconds = seconds
        self._running.due = time.thread_time() + seconds

    @property
    def tick(self) -> None:
        """A look at the clock; a property, because that is the cheapest thing that compiled templates do."""
        if time.thread_time() > self._running.due:
            raise jinja2.TemplateError(f"it takes longer than {self._running.seconds:g} seconds")

    def template(self, text: str) -> jinja2.Template:
        """The template ``text``, with a look at the clock in each loop's body."""
        parsed = self.parse(text)
        for loop in parsed.find_all(nodes.For):
            loop.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("tick"), lineno=loop.lineno))
        return self.from_string(parsed)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Jinja's own, while there is time: macros can call themselves without a loop."""
        _ = self.tick
        method = getattr(obj, "__wrapped__", obj)  # jinja wraps str.format
        text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(text, str) and name in _PADDING:
            given = (*args, *kwargs.values())
            wide = name.startswith("format") and _WIDE_FORMAT.search(text)
            if wide or any(isinstance(each, int) and each > _MAX_REPEATED for each in given):
                raise jinja2.TemplateError(f"the result of {name} is too large")
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """``left * right`` and ``left ** right`` if the result has a reasonable size."""
        match operator, left, right:
            case "**", int(), int():
                too_large = left.bit_length() * right > _MAX_BITS
            case "*", int(), int():
                too_large = left.bit_length() + right.bit_length() > _MAX_BITS
            case "*", Sized(), int():
                too_large = len(left) * right > _MAX_REPEATED
            case "*", int(), Sized():
                too_large = left * len(right) > _MAX_REPEATED
            case "%", str(), _:
                too_large = _WIDE_PERCENT.search(left) is not None
            case _:
                too_large = False
        if too_large:
            raise jinja2.TemplateError(f"the result of {operator} is too large")
        return super().call_binop(context, operator, left, right)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; jinja's own filter escapes HTML, which a prompt must not."""
    if indent is not None and indent > _MAX_INDENT:
        raise jinja2.TemplateError(f"tojson indents by at most {_MAX_INDENT}")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
