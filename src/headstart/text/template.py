"""Chat templates: messages to the prompt that a model was trained on, by Hugging Face's conventions."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headstart.errors import CorruptModelError, RequestError, shown
from headstart.text.model_files import read_json, read_text, require_directory, special_tokens

# What an expression in a template can raise besides jinja's own errors: None + "text", 1 / 0, "a" * 10**12.
_FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    MemoryError,
)

_MAX_REASON = 200  # characters; a template may quote what it was given
_MAX_REPEATED = 2**24  # characters or entries
_MAX_BITS = 2**16  # of a number


class ChatTemplate:
    """A model's chat template, compiled once; ``render`` gives the prompt.

    ``source`` is the template, or several by name, of which ``default`` must be one and ``tool_use``
    serves requests with tools.  ``named`` tokens (``bos_token``, …) are variables of the template; ``now``
    is its clock, local time unless told otherwise.

    A template is code from a stranger: it runs in jinja's immutable sandbox, which keeps it from
    attributes of Python objects, from changing the messages and from ranges beyond 100,000, and within
    ``seconds`` of a thread's own time and ``max_length`` characters.

    Raises ``CorruptModelError`` if a template is not one.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        named: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
        seconds: float = 10.0,
        max_length: int = 2**26,
    ) -> None:
        sources = {"default": source} if isinstance(source, str) else source
        if "default" not in sources:
            raise CorruptModelError(
                f"the model names its chat templates {', '.join(sorted(sources)) or 'not at all'}; "
                "one of them must be 'default'"
            )
        self._environment = environment = _environment(now)
        self._seconds = seconds
        self._max_length = max_length
        self._named = dict(named or {})
        self._templates: dict[str, jinja2.Template] = {}
        for name, text in sources.items():
            try:
                self._templates[name] = environment.from_string(_with_ticks(environment, text))
            except (jinja2.TemplateError, RecursionError) as error:
                raise CorruptModelError(f"the model's chat template {name!r} is broken: {error}") from error

    @classmethod
    def from_directory(cls, path: str | Path) -> ChatTemplate | None:
        """The chat template of a model directory, or ``None`` if the model has none.

        Read from ``tokenizer_config.json`` (a string or a list of named templates); the files
        ``chat_template.jinja`` and ``additional_chat_templates/NAME.jinja`` take its place.
        """
        directory = require_directory(path)
        sources = _configured(directory / "tokenizer_config.json")
        main = read_text(directory / "chat_template.jinja")
        others = sorted((directory / "additional_chat_templates").glob("*.jinja"))
        if main is not None or others:
            sources = {file.stem: read_text(file) or "" for file in others}
            if main is not None:
                sources["default"] = main
        return cls(sources, named=special_tokens(directory)) if sources else None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt for these messages; encode it without adding special tokens.

        ``content`` is a string, ``None`` or a list of OpenAI's text parts, which are joined by line
        breaks.  ``add_generation_prompt`` opens the assistant's turn.  Further ``variables`` (a
        server's ``chat_template_kwargs``) override named tokens of the same name.

        Raises ``RequestError`` for content of another kind, and if the template refuses.
        """
        name = "tool_use" if tools is not None and "tool_use" in self._templates else "default"
        told = {
            **self._named,
            **variables,
            "messages": [_with_text(message, index) for index, message in enumerate(messages)],
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        told.setdefault("documents", None)
        try:
            self._environment.allow(self._seconds)
            return self._bounded(self._templates[name].generate(told))
        except _FAULTS as error:
            reason = str(error)[:_MAX_REASON] or type(error).__name__
            raise _refused(f"the model's chat template cannot render these messages: {reason}") from error

    def _bounded(self, pieces: Iterable[str]) -> str:
        kept, length = [], 0
        for piece in pieces:
            kept.append(piece)
            length += len(piece)
            if length > self._max_length:
                raise jinja2.TemplateError(f"the prompt has more than {self._max_length:,} characters")
        return "".join(kept)


def _configured(path: Path) -> dict[str, str]:
    """The templates that a tokenizer_config.json names."""
    value = read_json(path).get("chat_template")
    match value:
        case None:
            return {}
        case str(text):
            return {"default": text}
        case list(entries):
            named = {
                entry["name"]: entry["template"]
                for entry in entries
                if isinstance(entry, dict)
                and isinstance(entry.get("name"), str)
                and isinstance(entry.get("template"), str)
            }
            if len(named) == len(entries):
                return named
    raise CorruptModelError(
        f"chat_template in {path} must be a string or a list of named, distinct templates"
    )


def _with_text(message: Any, index: int) -> dict[str, Any]:
    """The message with its content as one string; nothing else is touched."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise _refused(f"messages[{index}] must be an object with a role")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return dict(message)
    if not isinstance(content, Sequence):
        raise _refused(f"messages[{index}].content must be a string or a list of text parts")
    texts = []
    for number, part in enumerate(content):
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": kind} if kind != "text":
                raise _refused(
                    f"messages[{index}].content[{number}] is of type {shown(kind)}; only 'text' is supported"
                )
            case _:
                raise _refused(f'messages[{index}].content[{number}] must be {{"type": "text", "text": "…"}}')
    return {**message, "content": "\n".join(texts)}


def _refused(message: str) -> RequestError:
    return RequestError(message, param="messages", code="invalid_value")


class _GenerationBlock(Extension):
    """``{% generation %}…{% endgeneration %}`` marks an answer for training; here it is only a scope."""

    tags = {"generation"}  # noqa: RUF012 - declared by the base class

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with a clock, which a template looks at in each turn of a loop and at each call.

    The clock is the thread's own: templates that are rendered side by side do not use up each other's time.
    """

    # A power or a repetition is one instruction, which no clock interrupts.
    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._running = threading.local()

    def allow(self, seconds: float) -> None:
        """From now on, so much time for what this thread renders."""
        self._running.seconds = seconds
        self._running.due = time.thread_time() + seconds

    @property
    def tick(self) -> None:
        """A look at the clock; a property, because that is the cheapest thing that compiled templates do."""
        if time.thread_time() > self._running.due:
            raise jinja2.TemplateError(f"it takes longer than {self._running.seconds:g} seconds")

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Jinja's own, while there is time: macros can call themselves without a loop."""
        _ = self.tick
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
            case _:
                too_large = False
        if too_large:
            raise jinja2.TemplateError(f"the result of {operator} is too large")
        return super().call_binop(context, operator, left, right)


def _with_ticks(environment: _Environment, text: str) -> nodes.Template:
    """The template with a look at the clock in each loop's body."""
    template = environment.parse(text)
    for loop in template.find_all(nodes.For):
        loop.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("tick"), lineno=loop.lineno))
    return template


def _environment(now: Callable[[], datetime]) -> _Environment:
    """Jinja as Hugging Face's templates expect it: block trimming, loop controls, three helpers."""
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def strftime_now(pattern: str) -> str:
        return now().strftime(pattern)

    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    environment.filters["tojson"] = _to_json
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; jinja's own filter escapes HTML, which a prompt must not."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
