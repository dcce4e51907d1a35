"""Chat templates: messages to the prompt that a model was trained on, by Hugging Face's conventions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2

from headstart.errors import CorruptModelError, RequestError, shown
from headstart.text.model_files import read_json, read_text, require_directory, special_tokens
from headstart.text.sandbox import FAULTS, Sandbox

_MAX_REASON = 200  # characters; a template may quote what it was given


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
        self._sandbox = sandbox = Sandbox(now)
        self._seconds = seconds
        self._max_length = max_length
        self._named = dict(named or {})
        self._templates: dict[str, jinja2.Template] = {}
        for name, text in sources.items():
            try:
                self._templates[name] = sandbox.template(text)
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
            self._sandbox.allow(self._seconds)
            return self._bounded(self._templates[name].generate(told))
        except FAULTS as error:
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
