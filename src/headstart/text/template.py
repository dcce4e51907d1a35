"""Chat templates: messages to the prompt that a model was trained on, by Hugging Face's conventions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta

from headstart.errors import CorruptModelError, RequestError, shown
from headstart.text.model_files import read_json, read_text, require_directory, special_tokens
from headstart.text.sandbox import FAULTS, Sandbox
from headstart.text.tool_calls import ToolFormat, detect, format_named, tell_of_tools

_MAX_REASON = 200  # characters; a template may quote what it was given
_OPEN_END = "<|the answer goes on here|>"


class ChatTemplate:
    """A model's chat template, compiled once; ``render`` gives the prompt.

    ``source`` is the template, or several by name, of which ``default`` must be one and ``tool_use``
    serves requests with tools.  ``named`` tokens (``bos_token``, …) are variables of the template; ``now``
    is its clock, local time unless told otherwise.

    A template is code from a stranger: it runs in jinja's immutable sandbox, which keeps it from
    attributes of Python objects, from changing the messages and from ranges beyond 100,000, and within
    ``seconds`` of a thread's own time and ``max_length`` characters.  ``called`` is what errors call it.

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
        called: str = "the model's chat template",
    ) -> None:
        sources = {"default": source} if isinstance(source, str) else source
        if "default" not in sources:
            raise CorruptModelError(
                f"the model names its chat templates {', '.join(sorted(sources)) or 'not at all'}; "
                "one of them must be 'default'"
            )
        self._sandbox = sandbox = Sandbox(now)
        self._seconds = seconds
        self._max_length = max_length
        self._called = called
        self.named = dict(named or {})
        """The named tokens."""
        self.tool_source = sources.get("tool_use", sources["default"])
        """The template that serves requests with tools."""
        self._templates: dict[str, jinja2.Template] = {}
        for name, text in sources.items():
            try:
                self._templates[name] = sandbox.template(text)
            except (jinja2.TemplateError, RecursionError) as error:
                raise CorruptModelError(f"{called} {name!r} is broken: {error}") from error

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

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the template looks at tools; if not, the model has to be told of them in words."""
        return "tools" in meta.find_undeclared_variables(self._sandbox.parse(self.tool_source))

    @cached_property
    def tool_format(self) -> ToolFormat | None:
        """The form that the model is told to write calls in; None if that is none we know."""
        return detect(self.tool_source) if self.knows_tools else format_named("hermes")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt for these messages; encode it without adding special tokens.

        ``content`` is a string, ``None`` or a list of OpenAI's text parts, which are joined by line
        breaks.  Arguments of tool calls are JSON text, or what it says.  Where the template knows nothing of
        tools, messages tell of them and their calls.  ``add_generation_prompt`` opens the assistant's turn;
        ``continue_final_message`` leaves the last message open.  Further ``variables`` (a server's
        ``chat_template_kwargs``) override named tokens of the same name.

        Raises ``RequestError`` for content of another kind, and if the template refuses.
        """
        said = [_with_text(message, index) for index, message in enumerate(messages)]
        told = {
            **self.named,
            **variables,
            "messages": said if self.knows_tools else tell_of_tools(said, tools),
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        told.setdefault("documents", None)
        return self._open_ended(told) if continue_final_message else self._rendered(told)

    def _rendered(self, told: Mapping[str, Any]) -> str:
        name = "tool_use" if told["tools"] is not None and "tool_use" in self._templates else "default"
        try:
            self._sandbox.allow(self._seconds)
            return self._bounded(self._templates[name].generate(told))
        except FAULTS as error:
            reason = str(error)[:_MAX_REASON] or type(error).__name__
            raise _refused(f"{self._called} cannot render these messages: {reason}") from error

    def _open_ended(self, told: Mapping[str, Any]) -> str:
        """The prompt as far as the last message's content goes, which is part of the closed one, too.

        A template may strip what it writes, so a mark shows where it ends.
        """
        *others, last = told["messages"]
        content = last.get("content")
        if not content:
            raise _refused("the last message has no content that could be continued")
        closed = self._rendered(told)
        marked = self._rendered({**told, "messages": [*others, {**last, "content": content + _OPEN_END}]})
        text, mark, _ = marked.rpartition(_OPEN_END)
        for cut in (text, text.rstrip()):
            if mark and closed.startswith(cut):
                return cut
        raise _refused(f"{self._called} does not end with the last message's content: it cannot be continued")

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
    """The message with its content as one string, and the arguments of its calls as objects."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise _refused(f"messages[{index}] must be an object with a role")
    said = _with_objects(message)
    content = said.get("content")
    if content is None or isinstance(content, str):
        return said
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
    return {**said, "content": "\n".join(texts)}


def _with_objects(message: Mapping[Any, Any]) -> dict[str, Any]:
    """A copy whose calls' arguments are what their JSON says, as templates want them; else as they are."""
    calls = message.get("tool_calls")
    if not isinstance(calls, Sequence):
        return dict(message)
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _refused(message: str) -> RequestError:
    return RequestError(message, param="messages", code="invalid_value")
